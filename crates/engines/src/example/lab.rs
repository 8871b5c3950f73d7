//! Lab: the demands of the lab on this engine. Each change writes the whole list, so that there is no structure.

use farleaf_index::lab::{Lab, LabSize};
use farleaf_index::{NoShape, Spec};

use super::Example;

impl Lab for Example {
    const GROWS: bool = false;
    const HAS_RECORDS: bool = false;

    fn shape(_size: LabSize, _spec: &Spec) -> NoShape {
        NoShape
    }
}
