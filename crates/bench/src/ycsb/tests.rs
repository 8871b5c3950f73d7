#![allow(clippy::unwrap_used)]

use super::*;

/// In the manner of the files that come with YCSB.
const FILE: &str = "\
# A licence, a page long.

# Workload A: update heavy

recordcount=1000
operationcount=2000
workload=site.ycsb.workloads.CoreWorkload

readallfields=true

readproportion=0.5
updateproportion=0.5
scanproportion=0
insertproportion=0

requestdistribution=zipfian
";

fn from(file: &str, overrides: &[&str]) -> Result<YcsbConfig, YcsbError> {
    let mut properties = YcsbProperties::new();
    for text in overrides {
        properties.set(text)?;
    }
    properties.add_bytes(file.as_bytes(), Path::new("workloads/workloada"))?;
    properties.config()
}

fn message(file: &str, overrides: &[&str]) -> String {
    from(file, overrides).unwrap_err().to_string()
}

#[test]
fn files_are_read_as_they_are() {
    let config = from(FILE, &[]).unwrap();
    assert_eq!(config.workload.name, "workloada");
    assert_eq!(config.workload.mix, Workload::named("a").unwrap().mix);
    assert_eq!(config.workload.request, RequestDistribution::Zipfian { theta: 0.99 });
    assert_eq!(config.record_count, 1000);
    assert_eq!(config.operation_count, Some(2000));
    assert_eq!(config.value_bytes, 1000);
    assert_eq!(config.key_order, KeyOrder::Hashed);
    assert_eq!(
        (config.thread_count, config.target_ops_per_s, config.max_seconds),
        (None, None, None)
    );
    assert_eq!(config.ignored, [("readallfields".to_owned(), "true".to_owned())]);
}

#[test]
fn missing_properties_take_ycsbs_defaults() {
    let config = YcsbProperties::new().config().unwrap();
    assert_eq!(config.workload.name, "ycsb");
    assert_eq!(config.workload.mix.to_string(), "get=95,update=5");
    assert_eq!(config.workload.request, RequestDistribution::Uniform);
    assert_eq!(config.workload.scan_length, ScanLength::Uniform { min: 1, max: 1000 });
    assert_eq!((config.record_count, config.operation_count), (0, None));
    assert!(config.ignored.is_empty());
}

#[test]
fn every_property_has_its_effect() {
    let config = from(
        FILE,
        &[
            "recordcount=2M",
            "readproportion=0.1",
            "updateproportion=0.1",
            "insertproportion=0.1",
            "scanproportion=0.2",
            "readmodifywriteproportion=0.3",
            "deleteproportion=0.2",
            "requestdistribution=hotspot",
            "hotspotdatafraction=0.1",
            "hotspotopnfraction=0.9",
            "minscanlength=5",
            "maxscanlength=50",
            "scanlengthdistribution=zipfian",
            "fieldcount=1",
            "fieldlength=64",
            "insertorder=ordered",
            "threadcount=8",
            "target=10000",
            "maxexecutiontime=60",
            "status.interval=1",
        ],
    )
    .unwrap();
    assert_eq!(config.record_count, 2_000_000);
    assert_eq!(
        config.workload.mix.to_string(),
        "get=10,update=10,insert=10,scan=20,read_modify_write=30,remove=20"
    );
    let hotspot = RequestDistribution::Hotspot { set_share: 0.1, op_share: 0.9 };
    assert_eq!(config.workload.request, hotspot);
    assert_eq!(config.workload.scan_length, ScanLength::Zipfian { min: 5, max: 50 });
    assert_eq!(config.value_bytes, 64);
    assert_eq!(config.key_order, KeyOrder::Ordered);
    assert_eq!(config.thread_count, Some(8));
    assert_eq!(config.target_ops_per_s, Some(10_000));
    assert_eq!(config.max_seconds, Some(60));
    let ignored: Vec<&str> = config.ignored.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(ignored, ["readallfields", "status.interval"]);
}

#[test]
fn distributions_take_their_numbers() {
    let request = |overrides: &[&str]| from(FILE, overrides).unwrap().workload.request;
    let theta = |theta| RequestDistribution::Zipfian { theta };
    assert_eq!(request(&["zipfianconstant=1.2"]), theta(1.2));
    assert_eq!(request(&["zipfian.constant=0.5"]), theta(0.5));
    assert_eq!(request(&["zipfianconst=0.5", "zipfianconstant=0.7"]), theta(0.7));
    let latest = ["requestdistribution=LATEST", "zipfianconstant=0.8"];
    assert_eq!(request(&latest), RequestDistribution::Latest { theta: 0.8 });
    let exponential =
        ["requestdistribution=exponential", "exponential.percentile=90", "exponential.frac=0.5"];
    let expected = RequestDistribution::Exponential { op_share: 0.9, set_share: 0.5 };
    assert_eq!(request(&exponential), expected);
    assert_eq!(request(&["requestdistribution=sequential"]), RequestDistribution::Sequential);
    let fixed = from(FILE, &["scanlengthdistribution=constant", "maxscanlength=100"]).unwrap();
    assert_eq!(fixed.workload.scan_length, ScanLength::Fixed(100));
}

#[test]
fn later_files_win_and_overrides_win_over_all() {
    let mut properties = YcsbProperties::new();
    properties.set("recordcount=7").unwrap();
    properties.add_bytes(b"recordcount=1\nfieldcount=1\nfieldcount=2", Path::new("a")).unwrap();
    properties.add_bytes(b"fieldlength=10\noperationcount=3", Path::new("b")).unwrap();
    properties.add_bytes(b"operationcount=4", Path::new("c")).unwrap();
    let config = properties.config().unwrap();
    assert_eq!(config.record_count, 7);
    assert_eq!(config.operation_count, Some(4));
    assert_eq!(config.value_bytes, 20);
    assert_eq!(config.workload.name, "c");
}

#[test]
fn errors_name_the_file_and_line() {
    assert_eq!(
        message("recordcount=1000\n\nrecordcount = many", &[]),
        "workloads/workloada line 3: \"many\" is not a value for recordcount (accepted: a whole \
         number, as 1000 or 1M)"
    );
    assert_eq!(
        message(FILE, &["requestdistribution=zipfain"]),
        "-p: \"zipfain\" is not a value for requestdistribution; did you mean \"zipfian\"? \
         (accepted: uniform, zipfian, latest, hotspot, exponential, sequential)"
    );
    for (wrong, property) in [
        ("readproportion=-1", "readproportion"),
        ("readproportion=nan", "readproportion"),
        ("updateproportion=half", "updateproportion"),
        ("scanproportion=inf", "scanproportion"),
        ("operationcount=-5", "operationcount"),
        ("fieldlength=99999999999", "fieldlength"),
        ("fieldcount=1048577", "fieldlength"),
        ("fieldlengthdistribution=uniform", "fieldlengthdistribution"),
        ("insertorder=random", "insertorder"),
        ("minscanlength=0", "minscanlength"),
        ("minscanlength=2000", "minscanlength"),
        ("maxscanlength=4294967296", "maxscanlength"),
        ("scanlengthdistribution=normal", "scanlengthdistribution"),
        ("hotspotdatafraction=1.5", "hotspotdatafraction"),
        ("hotspotopnfraction=-0.1", "hotspotopnfraction"),
        ("zipfianconstant=0", "zipfianconstant"),
        ("exponential.frac=0", "exponential.frac"),
        ("threadcount=0", "threadcount"),
        ("target=fast", "target"),
        ("workload=site.ycsb.workloads.TimeSeriesWorkload", "workload"),
    ] {
        let error = from(FILE, &[wrong]).unwrap_err();
        assert!(
            matches!(&error, YcsbError::Value { property: found, .. } if *found == property),
            "{wrong}: {error}"
        );
    }
    assert!(matches!(
        from("readproportion=0\nupdateproportion=0", &[]),
        Err(YcsbError::Mix(WorkloadError::EmptyMix))
    ));
    assert!(matches!(
        from("requestdistribution=exponential\nexponential.percentile=100", &[]),
        Err(YcsbError::Distribution(_))
    ));
    assert_eq!(
        message("a=1\nb=\\u00", &[]),
        "workloads/workloada line 2: \\u needs four hexadecimal digits"
    );
}

#[test]
fn missing_files_are_named() {
    let error = YcsbProperties::new().read_file(Path::new("/does/not/exist")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read workload file /does/not/exist");
}
