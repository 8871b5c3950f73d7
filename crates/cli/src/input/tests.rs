#![allow(clippy::unwrap_used)]

use std::io::{self, BufReader, Cursor};

use super::*;

/// The output: keys and values with their lines, or errors as people see them.
type Told = Vec<Result<Pair, String>>;
/// Key, value and line.
type Pair = (Vec<u8>, Vec<u8>, Option<u64>);

fn tell(mut reader: impl RecordReader) -> (Told, u64) {
    let mut told = Vec::new();
    let mut record = Record::default();
    loop {
        match reader.read(&mut record) {
            Ok(true) => told.push(Ok((record.key.clone(), record.value.clone(), record.line))),
            Ok(false) => break,
            Err(error) => {
                told.push(Err(error.to_string()));
                if error.fatal {
                    break;
                }
            }
        }
    }
    (told, reader.empty_lines())
}

fn input(bytes: &[u8]) -> Box<dyn BufRead + Send> {
    // A small buffer puts its ends everywhere.
    Box::new(BufReader::with_capacity(3, Cursor::new(bytes.to_vec())))
}

fn columns(key: &str, value: &str, header: bool) -> Columns {
    let value = ValueSource::Column(value.parse().unwrap());
    Columns { key: key.parse().unwrap(), value, header }
}

fn csv(bytes: &[u8], columns: Columns) -> Told {
    tell(super::csv::CsvReader::new(input(bytes), columns)).0
}

fn tsv(bytes: &[u8], columns: Columns) -> Told {
    tell(delimited::TsvReader::new(input(bytes), columns)).0
}

fn lines(bytes: &[u8], value: ValueSource) -> (Told, u64) {
    tell(lines::LinesReader::new(input(bytes), value))
}

fn binary(bytes: &[u8]) -> Told {
    tell(binary::BinaryReader::new(input(bytes))).0
}

fn pair(key: &[u8], value: &[u8], line: u64) -> Result<Pair, String> {
    Ok((key.to_vec(), value.to_vec(), Some(line)))
}

#[test]
fn lines_are_keys_whatever_their_bytes() {
    let none = ValueSource::Constant(Vec::new());
    let (told, empty) = lines(b"one\r\n\n\xff\x00two\nthree\tx\r\r\n\r\nlast", none);
    let expected = [
        pair(b"one", b"", 1),
        pair(b"\xff\x00two", b"", 3),
        pair(b"three\tx\r", b"", 4),
        pair(b"last", b"", 6),
    ];
    assert_eq!(told, expected);
    assert_eq!(empty, 2);
    assert_eq!(lines(b"", ValueSource::Constant(Vec::new())), (vec![], 0));
}

#[test]
fn lines_have_constants_or_numbers_for_values() {
    let (told, _) = lines(b"a\n\nb\n", ValueSource::Constant(b"v".to_vec()));
    assert_eq!(told, [pair(b"a", b"v", 1), pair(b"b", b"v", 3)]);
    let (told, _) = lines(b"a\n\nb\n", ValueSource::LineNumber { as_u64: false });
    assert_eq!(told, [pair(b"a", b"1", 1), pair(b"b", b"3", 3)]);
    let (told, _) = lines(b"a\n", ValueSource::LineNumber { as_u64: true });
    assert_eq!(told, [pair(b"a", &1_u64.to_le_bytes(), 1)]);
}

#[test]
fn lines_that_are_too_long_are_skipped() {
    let none = ValueSource::Constant(Vec::new());
    let mut reader = lines::LinesReader::new(
        input(b"fits\r\nfits!\nlonger\nlonger\r\nlonger than all\nfits\nlonger"),
        none,
    );
    reader.lines.set_limit(5);
    let (told, _) = tell(reader);
    let too_long = |line: u64| Err(format!("line {line} (record {line}): longer than 5 bytes"));
    let expected = [
        pair(b"fits", b"", 1),
        pair(b"fits!", b"", 2),
        too_long(3),
        too_long(4),
        too_long(5),
        pair(b"fits", b"", 6),
        too_long(7),
    ];
    assert_eq!(told, expected);
}

#[test]
fn tabs_separate_and_nothing_is_quoted() {
    let told = tsv(b"\"k 1\"\ta,b\\t\r\n\nk2\t\n", columns("1", "2", false));
    assert_eq!(told, [pair(b"\"k 1\"", b"a,b\\t", 1), pair(b"k2", b"", 3)]);
}

#[test]
fn columns_go_by_name_or_number() {
    for (key, value) in [("name", "id"), ("2", "1"), ("name", "1")] {
        let told = tsv(b"\xef\xbb\xbfid\tname\n1\tann\n2\tbob\n", columns(key, value, true));
        assert_eq!(told, [pair(b"ann", b"1", 2), pair(b"bob", b"2", 3)]);
        let told = csv(b"\xef\xbb\xbfid,name\n1,ann\n2,bob\n", columns(key, value, true));
        assert_eq!(told, [pair(b"ann", b"1", 2), pair(b"bob", b"2", 3)]);
    }
}

#[test]
fn missing_columns_are_named() {
    let told = tsv(b"id\tname\n1\tann\n", columns("nmae", "id", true));
    let expected = "line 1 (record 1): no column is named \"nmae\"; did you mean \"name\"? (columns: id, name)";
    assert_eq!(told, [Err(expected.to_owned())]);
    let told = csv(b"only\n", columns("1", "2", false));
    let expected = "line 1 (record 1): 1 column, but the value is to come from column 2";
    assert_eq!(told, [Err(expected.to_owned())]);
}

#[test]
fn rows_of_another_width_are_errors_that_can_be_skipped() {
    for separator in ["\t", ","] {
        let text = "a\t1\nb\nc\t3\t4\nd\t5\n".replace('\t', separator);
        let read = if separator == "," { csv } else { tsv };
        let told = read(text.as_bytes(), columns("1", "2", false));
        let expected = [
            pair(b"a", b"1", 1),
            Err("line 2 (record 2): 1 column, but the first line has 2".to_owned()),
            Err("line 3 (record 3): 3 columns, but the first line has 2".to_owned()),
            pair(b"d", b"5", 4),
        ];
        assert_eq!(told, expected, "{separator:?}");
    }
}

#[test]
fn csv_is_quoted_as_the_standard_says() {
    let text = b"\"a,1\",\"say \"\"hi\"\"\"\n\"two\nlines\",x\r\n\n\"\",\"\"\nplain,end";
    let told = csv(text, columns("1", "2", false));
    let pairs: Vec<_> =
        told.into_iter().map(|pair| pair.map(|(key, value, _)| (key, value))).collect();
    let expected: [(&[u8], &[u8]); 4] =
        [(b"a,1", b"say \"hi\""), (b"two\nlines", b"x"), (b"", b""), (b"plain", b"end")];
    assert_eq!(pairs, expected.map(|(key, value)| Ok((key.to_vec(), value.to_vec()))));
}

#[test]
fn csv_counts_lines_inside_quotes_and_with_crlf() {
    let told = csv(b"\"a\nb\",1\nc,2\nd\n", columns("1", "2", false));
    assert_eq!(told[1], pair(b"c", b"2", 3));
    assert!(told[2].as_ref().unwrap_err().starts_with("line 4 (record 3)"));
    let told = csv(b"a,1\r\nb,2\r\nc\r\n", columns("1", "2", false));
    assert!(told[2].as_ref().unwrap_err().starts_with("line 3 (record 3)"), "{told:?}");
    assert_eq!(told.len(), 3);
    let told = csv(b"\r\n\n\"a\nb\",1\r\n\r\n\nc,2\nd", columns("1", "2", false));
    assert_eq!(told[..2], [pair(b"a\nb", b"1", 3), pair(b"c", b"2", 7)]);
    assert!(told[2].as_ref().unwrap_err().starts_with("line 8 (record 3)"), "{told:?}");
}

/// However the input ends, no record is lost and none is made up.
#[test]
fn csv_ends_where_the_input_does() {
    for end in ["", "\n", "\r\n", "\n\n", "\n\r\n\n"] {
        let told = csv(format!("a,1\nb,2{end}").as_bytes(), columns("1", "2", false));
        assert_eq!(told, [pair(b"a", b"1", 1), pair(b"b", b"2", 2)], "{end:?}");
        let told = csv(format!("end,1\nend,end{end}").as_bytes(), columns("1", "2", false));
        assert_eq!(told, [pair(b"end", b"1", 1), pair(b"end", b"end", 2)], "{end:?}");
    }
    assert_eq!(csv(b"", columns("1", "2", false)), []);
    assert_eq!(csv(b"\n\n", columns("1", "2", false)), []);
    assert_eq!(csv(b"a,b\n", columns("1", "2", true)), []);
}

#[test]
fn csv_with_an_open_quote_is_an_error() {
    for text in ["a,1\nb,\"2\nc,3\n", "a,1\nb,\"2", "a,1\n\"", "a,1\nb,\"\"\"\n"] {
        let told = csv(text.as_bytes(), columns("1", "2", false));
        let expected = "line 2 (record 2): a quoted field does not end".to_owned();
        assert_eq!(told, [pair(b"a", b"1", 1), Err(expected)], "{text:?}");
    }
}

/// An input that never ends, in a quoted field.
struct Endless;

impl io::Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(b'"');
        // An even number of quotes leaves the field open.
        Ok(buffer.len() & !1)
    }
}

#[test]
fn endless_records_are_given_up() {
    let endless = || Box::new(BufReader::new(io::Read::chain(&b"a,\"x"[..], Endless)));
    let reader = super::csv::CsvReader::new(endless(), columns("1", "2", false));
    let (told, _) = tell(reader);
    assert_eq!(told, [Err("line 1 (record 1): longer than 16777216 bytes".to_owned())]);
}

#[test]
fn binary_records_are_read_back() {
    let mut bytes = Vec::new();
    binary::write_record(b"key", b"value", &mut bytes);
    binary::write_record(b"", b"\n\0\xff", &mut bytes);
    binary::write_record(&[7; 1000], b"", &mut bytes);
    let expected = [
        Ok((b"key".to_vec(), b"value".to_vec(), None)),
        Ok((Vec::new(), b"\n\0\xff".to_vec(), None)),
        Ok((vec![7; 1000], Vec::new(), None)),
    ];
    assert_eq!(binary(&bytes), expected);
    assert_eq!(binary(b""), []);
}

/// Cut anywhere but between records, the input is told to be cut.
#[test]
fn binary_records_that_end_early_are_errors() {
    let mut bytes = Vec::new();
    binary::write_record(b"key", b"value", &mut bytes);
    let first = bytes.len();
    binary::write_record(b"KEY", b"VALUE", &mut bytes);
    for end in first + 1..bytes.len() {
        let told = binary(&bytes[..end]);
        assert_eq!(told.len(), 2, "{end}");
        let error = told[1].as_ref().unwrap_err();
        assert!(error.starts_with("record 2: the input ends inside the "), "{error}");
    }
    let told = binary(&bytes[..first + 6]);
    let expected = "record 2: the input ends inside the key: 2 of 3 bytes are there";
    assert_eq!(told[1].as_ref().unwrap_err(), expected);
}

#[test]
fn binary_lengths_that_cannot_be_take_no_memory() {
    let told = binary(b"\xff\xff\xff\xffkey");
    let expected = "record 1: a key of 4294967295 bytes cannot be: at most 16777216";
    assert_eq!(told, [Err(expected.to_owned())]);
}

/// Every reader ends without a panic, whatever the bytes (INV-INPUT-1).
#[test]
fn arbitrary_bytes_are_survived() {
    let alphabet = b"\0\x01\x02,\t\"\r\n\xff\xc3ab";
    let mut state = 1_u64;
    let mut next = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..2_000 {
        let length = next(40);
        let bytes: Vec<u8> = (0..length).map(|_| alphabet[next(alphabet.len())]).collect();
        let header = next(2) == 0;
        csv(&bytes, columns("1", "2", header));
        tsv(&bytes, columns("1", "2", header));
        lines(&bytes, ValueSource::Constant(Vec::new()));
        binary(&bytes);
    }
}
