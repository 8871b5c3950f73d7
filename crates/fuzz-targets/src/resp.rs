//! Requests of Redis's clients: whole and in pieces, beside the parser of `redis-protocol`.

use farleaf_resp::request::{Limits, Parsed, Parser};
use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::types::RangeFrame;

/// The commands of an input, and the error that ends it.
type Commands = (Vec<Vec<Vec<u8>>>, Option<String>);

/// The first byte chooses the limits and the size of pieces.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&mode, input)) = bytes.split_first() else { return };
    let limits = if mode & 1 == 0 { Limits::OPEN } else { Limits::BEFORE_AUTH };
    let whole = commands(input, input.len().max(1), limits);
    let pieces = commands(input, usize::from(mode >> 1).max(1), limits);
    assert_eq!(whole, pieces, "commands do not depend on how their bytes come");
    compare(input, limits);
}

fn commands(input: &[u8], piece: usize, limits: Limits) -> Commands {
    let (mut parser, mut found) = (Parser::default(), Vec::new());
    let (mut buffer, mut rest) = (Vec::new(), input);
    loop {
        match parser.parse(&buffer, limits) {
            Ok(Parsed::Command(used)) => {
                let args = (0..parser.args()).map(|number| parser.arg(&buffer, number).to_vec());
                found.push(args.collect());
                buffer.drain(..used);
            }
            Ok(Parsed::Incomplete) if rest.is_empty() => return (found, None),
            Ok(Parsed::Incomplete) => {
                let (next, more) = rest.split_at(piece.min(rest.len()));
                buffer.extend_from_slice(next);
                rest = more;
            }
            Err(error) => return (found, Some(error.to_string())),
        }
    }
}

/// Checks that both parsers find the same array of bulk strings, if both find one.
fn compare(input: &[u8], limits: Limits) {
    let mut parser = Parser::default();
    let Ok(Parsed::Command(used)) = parser.parse(input, limits) else { return };
    let Ok(Some((RangeFrame::Array(parts), theirs))) = decode_range(input) else { return };
    let range = |part: &RangeFrame| match part {
        RangeFrame::BulkString((from, to)) => Some(*from..*to),
        _ => None,
    };
    let Some(ranges) = parts.iter().map(range).collect::<Option<Vec<_>>>() else { return };
    assert_eq!(used, theirs);
    assert_eq!(parser.args(), ranges.len());
    for (number, range) in ranges.into_iter().enumerate() {
        assert_eq!(parser.arg(input, number), &input[range]);
    }
}
