//! Canaries: the seeded bugs of this crate. [`farleaf_fabric::canary`] has the switch.

#[cfg(feature = "canary")]
pub use farleaf_fabric::ArmedCanary;
pub use farleaf_fabric::Canary;

pub use crate::block::LOSE_RUN;
pub use crate::member::{MEMBERS_BEFORE_FENCE, SKIP_FENCE};
pub use crate::reliable::{REGION_UNSETTLED, SETTLE_WITHOUT_RECONNECT};
pub use crate::retire::REUSE_EARLY;
pub use crate::session::{ANSWER_AS_ZOMBIE, SKIP_PIN};

/// Those that the lab hunts with any engine. Engines list the others that tables show.
pub static CANARIES: &[&Canary] = &[&REUSE_EARLY, &SKIP_PIN, &LOSE_RUN];

/// Those of memory that compute servers expose. No engine shows them, so this crate's own tests find them.
pub static OF_REGIONS: &[&Canary] = &[&MEMBERS_BEFORE_FENCE, &REGION_UNSETTLED];
