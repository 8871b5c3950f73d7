//! Modules that the tests compile by path leave their own tests out, which know nothing of a model.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
