//! Depth: how far the suites go with an engine.
//!
//! `FARLEAF_FULL` names the engines that the suites go through in full, by commas, or `all`. Unset, all go short.
//! `scripts/changed.sh` tells the engines that a change touches.

use farleaf_engines::Engine;

/// The part of their cases that the suites go through with an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// A sample of seeds, crash points and formats.
    Short,
    /// All that the suites have.
    Full,
}

impl Depth {
    /// One of two values.
    pub fn pick<T>(self, short: T, full: T) -> T {
        match self {
            Depth::Short => short,
            Depth::Full => full,
        }
    }
}

/// The depth for `engine`. Full if `FARLEAF_FULL` names it or all, or if `FARLEAF_SOAK` is set.
pub fn depth(engine: Engine) -> Depth {
    let of = |name| std::env::var(name).ok();
    depth_by(engine, of("FARLEAF_FULL").as_deref(), of("FARLEAF_SOAK").is_some())
}

fn depth_by(engine: Engine, full: Option<&str>, soaks: bool) -> Depth {
    let is_named =
        |names: &str| names.split(',').any(|name| name == "all" || name == engine.name());
    if soaks || full.is_some_and(is_named) { Depth::Full } else { Depth::Short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_engines_go_in_full() {
        let full = |names| {
            let by = |engine: &&Engine| depth_by(**engine, names, false) == Depth::Full;
            Engine::ALL.iter().filter(by).map(|engine| engine.name()).collect::<Vec<_>>()
        };
        assert_eq!(full(None), Vec::<&str>::new());
        assert_eq!(full(Some("")), Vec::<&str>::new());
        assert_eq!(full(Some("dart,dex")).len(), 2);
        // A name that only begins like it is another.
        assert_eq!(full(Some("smart")), ["smart"]);
        assert_eq!(full(Some("all")).len(), Engine::ALL.len());
        assert_eq!(depth_by(Engine::ALL[0], None, true), Depth::Full);
        assert_eq!([Depth::Short, Depth::Full].map(|depth| depth.pick(1, 2)), [1, 2]);
    }
}
