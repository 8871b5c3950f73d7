//! libFuzzer entry point: runs the target that `FARLEAF_FUZZ_TARGET` names.

#![no_main]

use std::sync::OnceLock;

use farleaf_fuzz_targets::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FARLEAF_FUZZ_TARGET").unwrap_or_default();
        farleaf_fuzz_targets::target(&name)
            .unwrap_or_else(|| panic!("no target is named {name:?} (FARLEAF_FUZZ_TARGET)"))
    });
    (target.run)(input);
});
