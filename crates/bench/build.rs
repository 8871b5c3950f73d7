//! Build script: passes the commit of the build to the crate as `FARLEAF_COMMIT`.
//!
//! A value in the environment wins; otherwise the script asks git. Without git, without a checkout,
//! or in a source archive inside of another repository, it leaves the commit out: this script never
//! fails a build.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FARLEAF_COMMIT");
    if env::var_os("FARLEAF_COMMIT").is_some() {
        // rustc inherits it, nothing to do.
        return;
    }
    // A checkout of another project that merely contains this source is not ours to quote.
    if git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    let Some(commit) = git(&["rev-parse", "HEAD"]) else { return };
    println!("cargo::rustc-env=FARLEAF_COMMIT={commit}");

    // The first changes on checkout, the second with every commit as well.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// The one-line answer of a git command run beside this file, if it succeeds and is not empty.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).stderr(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!line.is_empty() && !line.contains('\n')).then_some(line)
}
