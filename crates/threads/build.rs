//! Build script: leaves out the plain tests of modules that the models compile by path.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
