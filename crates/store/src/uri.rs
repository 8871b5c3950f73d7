//! Addresses of pools.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::suggest;

/// What an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Uri {
    /// A new pool in this process's own memory.
    Mem,
    /// A pool in a folder of memory files.
    Shm(PathBuf),
}

/// What every complaint about an address ends with.
const UNDERSTOOD: &str = "understood are \"mem:\" (a new pool in this process's memory) and \
                          \"shm:<folder>\" (a pool that the processes of this machine share)";

impl Uri {
    pub(crate) fn parse(uri: &str) -> Result<Uri> {
        let Some((scheme, rest)) = uri.split_once(':') else {
            return Err(complain(uri, &bare(uri)));
        };
        match scheme {
            "mem" if rest.is_empty() => Ok(Uri::Mem),
            "mem" => Err(complain(uri, "; nothing may follow \"mem:\"")),
            "shm" if rest.is_empty() => {
                Err(complain(uri, "; a folder must follow, as in \"shm:/dev/shm/mypool\""))
            }
            "shm" if rest.starts_with("//") && !rest.starts_with("///") => {
                let folder = rest.trim_start_matches('/');
                let hint = format!("; did you mean \"shm:/{folder}\" or \"shm:{folder}\"?");
                Err(complain(uri, &hint))
            }
            "shm" => Ok(Uri::Shm(PathBuf::from(rest))),
            "tcp" | "etcd" | "verbs" => {
                Err(complain(uri, &format!("; this version does not speak \"{scheme}:\"")))
            }
            _ => {
                let hint = suggest::nearest(scheme, ["mem", "shm"]).map(|scheme| match scheme {
                    "mem" => "; did you mean \"mem:\"?".to_owned(),
                    _ => format!("; did you mean \"shm:{rest}\"?"),
                });
                Err(complain(uri, &hint.unwrap_or_default()))
            }
        }
    }
}

/// A hint for an address without a colon.
fn bare(uri: &str) -> String {
    if uri.contains(['/', '.']) {
        format!("; did you mean \"shm:{uri}\"?")
    } else if suggest::nearest(uri, ["mem"]).is_some() {
        "; did you mean \"mem:\"?".to_owned()
    } else {
        String::new()
    }
}

fn complain(uri: &str, hint: &str) -> Error {
    Error::invalid(format!("cannot open \"{uri}\"{hint}{} {UNDERSTOOD}", glue(hint)))
}

/// What stands between a hint and the list.
fn glue(hint: &str) -> &'static str {
    if hint.ends_with('?') { "" } else { ";" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn addresses_are_told_apart() {
        assert_eq!(Uri::parse("mem:").expect("mem"), Uri::Mem);
        let shm = |path: &str| Uri::Shm(PathBuf::from(path));
        assert_eq!(Uri::parse("shm:/dev/shm/p").expect("absolute"), shm("/dev/shm/p"));
        assert_eq!(Uri::parse("shm:some/p").expect("relative"), shm("some/p"));
        assert_eq!(Uri::parse("shm:///dev/shm/p").expect("slashes"), shm("/dev/shm/p"));
    }

    #[test]
    fn wrong_addresses_say_what_would_be_right() {
        for (uri, hint) in [
            ("mem", "did you mean \"mem:\"?"),
            ("", "understood are"),
            ("mem:4GiB", "nothing may follow"),
            ("mme:", "did you mean \"mem:\"?"),
            ("MEM:", "did you mean \"mem:\"?"),
            ("shm:", "a folder must follow"),
            ("smh:/p", "did you mean \"shm:/p\"?"),
            ("shm://pool", "did you mean \"shm:/pool\" or \"shm:pool\"?"),
            ("/dev/shm/p", "did you mean \"shm:/dev/shm/p\"?"),
            ("tcp://host:1", "this version does not speak \"tcp:\""),
            ("etcd://host", "this version does not speak \"etcd:\""),
            ("postgres://x", "understood are \"mem:\""),
        ] {
            let error = Uri::parse(uri).expect_err(uri);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{uri}");
            assert!(error.to_string().contains(hint), "{uri}: {error}");
            assert!(error.to_string().contains("\"shm:<folder>\""), "{uri}: {error}");
        }
    }
}
