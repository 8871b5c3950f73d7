//! YCSB: reads YCSB's workload files unchanged.
//!
//! ```
//! # use farleaf_bench::YcsbProperties;
//! let mut properties = YcsbProperties::new();
//! properties.set("recordcount=1000")?;
//! properties.set("readproportion=0.5")?;
//! properties.set("updateproportion=0.5")?;
//! properties.set("requestdistribution=zipfian")?;
//! let config = properties.config()?;
//! assert_eq!(config.record_count, 1000);
//! assert_eq!(config.workload.mix.to_string(), "get=50,update=50");
//! # Ok::<(), farleaf_bench::YcsbError>(())
//! ```
//!
//! A missing property takes YCSB's own default. Two things differ: a record is one value here, of
//! `fieldcount` times `fieldlength` bytes, so that reads and updates are always of all of it; and
//! operations with no property of YCSB's (`deleteproportion`) are known from its descendants.

mod properties;

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use farleaf_index::suggest::{did_you_mean, nearest};
use thiserror::Error;

use crate::{
    config::BenchConfig,
    distribution::{DistributionError, RequestDistribution, ZIPFIAN_THETA_DEFAULT},
    keys::KeyOrder,
    units::Count,
    workload::{Mix, OpKind, ScanLength, Workload, WorkloadError},
};

/// Names under which files give the zipfian exponent; the first one found counts.
const THETA_NAMES: [&str; 3] = ["zipfianconstant", "zipfian.constant", "zipfianconst"];

/// Properties from files and from the command line, and where each came from.
#[derive(Clone, Debug, Default)]
pub struct YcsbProperties {
    values: BTreeMap<String, (String, YcsbOrigin)>,
    file_name: Option<String>,
}

/// Origin of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum YcsbOrigin {
    /// In a file, on a line counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line_number: usize,
    },
    /// As an override (`-p`).
    Override,
}

impl fmt::Display for YcsbOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line_number } => write!(f, "{} line {line_number}", path.display()),
            Self::Override => f.write_str("-p"),
        }
    }
}

/// The run that the properties describe.
#[derive(Clone, Debug, PartialEq)]
pub struct YcsbConfig {
    /// Mix, distribution and scan lengths; named after the last file that was read.
    pub workload: Workload,
    /// Records to load.
    pub record_count: u64,
    /// Operations to run; `None` if left out or 0.
    pub operation_count: Option<u64>,
    /// The size of a record: `fieldcount` times `fieldlength`.
    pub value_bytes: usize,
    /// Order of keys: spread (`hashed`, the default) or sorted as they were inserted.
    pub key_order: KeyOrder,
    /// Clients; `None` if left out.
    pub thread_count: Option<u64>,
    /// Operations per second at which an open loop runs; `None` if left out or 0.
    pub target_ops_per_s: Option<u64>,
    /// Seconds after which the run ends; `None` if left out or 0.
    pub max_seconds: Option<u64>,
    /// Properties that were given and change nothing here, by name.
    pub ignored: Vec<(String, String)>,
}

impl YcsbProperties {
    /// No properties yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the properties of the file at `path`, which win over those of earlier files.
    ///
    /// # Errors
    /// [`YcsbError::Read`] or [`YcsbError::Syntax`].
    pub fn read_file(&mut self, path: &Path) -> Result<(), YcsbError> {
        let bytes =
            fs::read(path).map_err(|source| YcsbError::Read { path: path.to_owned(), source })?;
        self.add_bytes(&bytes, path)
    }

    /// Sets one property, as in YCSB's `-p property=value`; wins over files, set before or after.
    ///
    /// # Errors
    /// [`YcsbError::Override`] if there is no property or no `=`.
    pub fn set(&mut self, text: &str) -> Result<(), YcsbError> {
        let (key, value) = properties::split_override(text)?;
        self.values.insert(key, (value, YcsbOrigin::Override));
        Ok(())
    }

    /// Evaluates the properties.
    ///
    /// # Errors
    /// [`YcsbError::Value`] for a value that is not one of its property's, and
    /// [`YcsbError::Mix`] if no operation is asked for.
    pub fn config(&self) -> Result<YcsbConfig, YcsbError> {
        let mut lookup = Lookup { properties: self, used: Vec::new() };
        let workload = lookup.workload()?;
        let record_count = lookup.count("recordcount", 0)?;
        let operation_count = lookup.count("operationcount", 0)?;
        for (name, count) in [("recordcount", record_count), ("operationcount", operation_count)] {
            // Without one the run takes its default, which 0 does not ask for.
            if count == 0 && lookup.text(name).is_some() {
                return Err(lookup.wrong(name, "a whole number of at least 1"));
            }
        }
        lookup.one_of("fieldlengthdistribution", &["constant"])?;
        let field_count = lookup.count("fieldcount", 10)?;
        let value_bytes = field_count.checked_mul(lookup.count("fieldlength", 100)?);
        let value_bytes = value_bytes
            .and_then(|bytes| usize::try_from(bytes).ok())
            .filter(|bytes| *bytes <= BenchConfig::VALUE_BYTES_MAX)
            .ok_or_else(|| lookup.wrong("fieldlength", VALUE_BYTES_FORMS))?;
        let key_order = match lookup.one_of("insertorder", &["hashed", "ordered"])? {
            Some("ordered") => KeyOrder::Ordered,
            _ => KeyOrder::Hashed,
        };
        let above_zero = |count| (count > 0).then_some(count);
        let thread_count = lookup.count("threadcount", 0)?;
        if thread_count == 0 && self.values.contains_key("threadcount") {
            return Err(lookup.wrong("threadcount", "a whole number of at least 1"));
        }
        let target_ops_per_s = above_zero(lookup.count("target", 0)?);
        let max_seconds = above_zero(lookup.count("maxexecutiontime", 0)?);
        Ok(YcsbConfig {
            workload,
            record_count,
            operation_count: above_zero(operation_count),
            value_bytes,
            key_order,
            thread_count: above_zero(thread_count),
            target_ops_per_s,
            max_seconds,
            ignored: lookup.unused(),
        })
    }

    /// Takes `bytes` for the contents of the file at `path`; see [`YcsbProperties::read_file`].
    ///
    /// # Errors
    /// [`YcsbError::Syntax`].
    pub fn add_bytes(&mut self, bytes: &[u8], path: &Path) -> Result<(), YcsbError> {
        let found = properties::parse(bytes).map_err(|(line_number, fault)| YcsbError::Syntax {
            path: path.to_owned(),
            line_number,
            fault,
        })?;
        for property in found {
            let overridden =
                matches!(self.values.get(&property.key), Some((_, YcsbOrigin::Override)));
            if !overridden {
                let origin =
                    YcsbOrigin::File { path: path.to_owned(), line_number: property.line_number };
                self.values.insert(property.key, (property.value, origin));
            }
        }
        self.file_name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(())
    }
}

const VALUE_BYTES_FORMS: &str = "fieldcount times fieldlength of at most 1048576";

/// Reads properties and remembers their names.
struct Lookup<'a> {
    properties: &'a YcsbProperties,
    used: Vec<&'static str>,
}

impl<'a> Lookup<'a> {
    fn workload(&mut self) -> Result<Workload, YcsbError> {
        // Only the core workload is a mix over one table of records.
        if let Some(class) = self.text("workload")
            && !class.ends_with("CoreWorkload")
        {
            return Err(self.wrong("workload", "a class that ends with CoreWorkload"));
        }
        let mut weights = Vec::new();
        for (name, kind, default) in [
            ("readproportion", OpKind::Get, 0.95),
            ("updateproportion", OpKind::Update, 0.05),
            ("insertproportion", OpKind::Insert, 0.0),
            ("scanproportion", OpKind::Scan, 0.0),
            ("readmodifywriteproportion", OpKind::ReadModifyWrite, 0.0),
            ("deleteproportion", OpKind::Remove, 0.0),
        ] {
            weights.push((kind, self.number(name, default, 0.0..=f64::MAX, "0 or more, as 0.95")?));
        }
        Ok(Workload {
            name: self.properties.file_name.clone().unwrap_or_else(|| "ycsb".to_owned()),
            mix: Mix::new(&weights)?,
            request: self.request()?,
            scan_length: self.scan_length()?,
        })
    }

    fn request(&mut self) -> Result<RequestDistribution, YcsbError> {
        const SHARE: &str = "0 to 1, as 0.2";
        let mut theta = ZIPFIAN_THETA_DEFAULT;
        for name in THETA_NAMES.into_iter().rev() {
            theta = self.number(name, theta, f64::MIN_POSITIVE..=f64::MAX, "above 0, as 0.99")?;
        }
        let set_share = self.number("hotspotdatafraction", 0.2, 0.0..=1.0, SHARE)?;
        let op_share = self.number("hotspotopnfraction", 0.8, 0.0..=1.0, SHARE)?;
        let percentile =
            self.number("exponential.percentile", 95.0, 0.0..=100.0, "between 0 and 100")?;
        let fraction = self.number(
            "exponential.frac",
            0.857_142_857_1,
            f64::MIN_POSITIVE..=f64::MAX,
            "above 0",
        )?;
        let request = match self.one_of("requestdistribution", &RequestDistribution::NAMES)? {
            Some("zipfian") => RequestDistribution::Zipfian { theta },
            Some("latest") => RequestDistribution::Latest { theta },
            Some("hotspot") => RequestDistribution::Hotspot { set_share, op_share },
            Some("exponential") => {
                let op_share = percentile / 100.0;
                RequestDistribution::Exponential { op_share, set_share: fraction }
            }
            Some("sequential") => RequestDistribution::Sequential,
            _ => RequestDistribution::Uniform,
        };
        request.validate()?;
        Ok(request)
    }

    fn scan_length(&mut self) -> Result<ScanLength, YcsbError> {
        const FORMS: &str = "a whole number of at least 1 and less than 2^32";
        let mut length = |name, default| {
            let length = self.count(name, default)?;
            u32::try_from(length)
                .ok()
                .filter(|length| *length > 0)
                .ok_or_else(|| self.wrong(name, FORMS))
        };
        let min = length("minscanlength", 1)?;
        let max = length("maxscanlength", 1000)?;
        if min > max {
            // Blames the one that was given.
            let given = self.properties.values.contains_key("maxscanlength");
            let name = if given { "maxscanlength" } else { "minscanlength" };
            return Err(self.wrong(name, "minscanlength of at most maxscanlength"));
        }
        let names = ["uniform", "zipfian", "constant", "const"];
        Ok(match self.one_of("scanlengthdistribution", &names)? {
            Some("zipfian") => ScanLength::Zipfian { min, max },
            Some("constant" | "const") => ScanLength::Fixed(max),
            _ => ScanLength::Uniform { min, max },
        })
    }

    /// The value of `name`, if it is given and not empty.
    fn text(&mut self, name: &'static str) -> Option<&'a str> {
        self.used.push(name);
        let (value, _) = self.properties.values.get(name)?;
        (!value.is_empty()).then_some(value.as_str())
    }

    /// A whole number; also reads `1M`.
    fn count(&mut self, name: &'static str, default: u64) -> Result<u64, YcsbError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        match Count::from_str(text) {
            Ok(count) => Ok(count.0),
            Err(_) => Err(self.wrong(name, "a whole number, as 1000 or 1M")),
        }
    }

    fn number(
        &mut self,
        name: &'static str,
        default: f64,
        range: std::ops::RangeInclusive<f64>,
        accepted: &'static str,
    ) -> Result<f64, YcsbError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse()
            .ok()
            .filter(|number| range.contains(number))
            .ok_or_else(|| self.wrong(name, accepted))
    }

    /// One of `names`, if the property is given; upper and lower case are the same.
    fn one_of(
        &mut self,
        name: &'static str,
        names: &[&'static str],
    ) -> Result<Option<&'static str>, YcsbError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let found = names.iter().copied().find(|known| known.eq_ignore_ascii_case(text));
        found.map(Some).ok_or_else(|| {
            let mut error = self.wrong(name, &names.join(", "));
            if let YcsbError::Value { suggestion, .. } = &mut error {
                *suggestion = nearest(text, names.iter().copied()).map(str::to_owned);
            }
            error
        })
    }

    /// The error that blames property `name`, which may not even be given.
    fn wrong(&self, name: &'static str, accepted: &str) -> YcsbError {
        let given = self.properties.values.get(name).cloned();
        let (read, origin) = given.unwrap_or((String::new(), YcsbOrigin::Override));
        YcsbError::Value {
            origin,
            property: name,
            read,
            suggestion: None,
            accepted: accepted.to_owned(),
        }
    }

    fn unused(self) -> Vec<(String, String)> {
        let values = self.properties.values.iter();
        values
            .filter(|(name, _)| !self.used.contains(&name.as_str()))
            .map(|(name, (value, _))| (name.clone(), value.clone()))
            .collect()
    }
}

/// Properties that cannot be read or make no sense.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum YcsbError {
    /// A file cannot be read.
    #[error("cannot read workload file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not a properties file.
    #[error("{} line {line_number}: {fault}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, counting from 1.
        line_number: usize,
        /// The fault.
        fault: &'static str,
    },
    /// An override is not `property=value`.
    #[error("-p \"{read}\" is not of the form property=value")]
    Override {
        /// The override as it was given.
        read: String,
    },
    /// A value is not one that its property can have.
    #[error("{origin}: \"{read}\" is not a value for {property}{} (accepted: {accepted})",
        did_you_mean(suggestion.as_deref()))]
    Value {
        /// Origin of the value.
        origin: YcsbOrigin,
        /// The property.
        property: &'static str,
        /// The value as it was given.
        read: String,
        /// The known value that was probably meant.
        suggestion: Option<String>,
        /// The accepted values.
        accepted: String,
    },
    /// The proportions are all 0, or too large to add up.
    #[error("the proportions of operations make no mix")]
    Mix(#[from] WorkloadError),
    /// The numbers of the distribution are out of range.
    #[error("the request distribution is wrong")]
    Distribution(#[from] DistributionError),
}

#[cfg(test)]
mod tests;
