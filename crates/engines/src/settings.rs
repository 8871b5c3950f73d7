//! Settings of engines: which there are, and whether an engine takes those that were given.

use farleaf_index::engine::{Engine as Design, Traits};
use farleaf_index::knobs::{Knob, KnobError, Knobs, Settings};
use farleaf_index::{IndexError, Shape};

use super::registry::on_engine;
use super::{Engine, TableFormat};

/// A knob with its default.
#[derive(Clone, Debug, PartialEq)]
pub struct KnobDefault {
    /// The knob.
    pub knob: Knob,
    /// The value that it has unless it is set.
    pub default: String,
}

/// Settings that an engine does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("engine {engine}: {error}")]
pub struct SettingError {
    /// The engine.
    pub engine: Engine,
    /// The first setting that it does not take, and why.
    pub error: KnobError,
}

fn defaults<T: Knobs>() -> Vec<KnobDefault> {
    let default = T::default();
    T::list().iter().map(|it| KnobDefault { knob: it.knob, default: (it.get)(&default) }).collect()
}

fn names<T: Knobs>() -> impl Iterator<Item = &'static str> + Clone {
    T::list().iter().map(|it| it.knob.name)
}

impl Engine {
    /// Its traits.
    pub fn traits(self) -> Traits {
        on_engine!(self, D => <D as Design>::TRAITS)
    }

    /// Settings that are fixed when a table is made.
    pub fn shape(self) -> Vec<KnobDefault> {
        let mut all = defaults::<Shape>();
        all.retain(|it| self.shape_names().any(|name| name == it.knob.name));
        all
    }

    /// Returns whether the engine's tables can have nodes that reserve their room, and grow in place.
    pub fn can_reserve(self) -> bool {
        self.shape_names().any(|name| name == "nodes")
    }

    /// Returns whether the objects of the engine's tables can point back to the slots that lead to them.
    pub fn can_point_back(self) -> bool {
        self.shape_names().any(|name| name == "check")
    }

    fn shape_names(self) -> impl Iterator<Item = &'static str> + Clone {
        on_engine!(self, D => <D as Design>::SHAPE).iter().copied()
    }

    /// Settings by which one compute server opens a table.
    pub fn options(self) -> Vec<KnobDefault> {
        on_engine!(self, D => defaults::<<D as Design>::Options>())
    }

    /// Checks settings by which a table is to be opened.
    ///
    /// # Errors
    /// The first that the engine does not take.
    pub fn check(self, settings: &Settings) -> Result<(), SettingError> {
        let (shape, options) = self.split(settings)?;
        match shape.iter().find_map(|(name, _)| names::<Shape>().find(|it| *it == name)) {
            Some(name) => Err(SettingError { engine: self, error: KnobError::Fixed(name) }),
            None => {
                debug_assert_eq!(&options, settings);
                Ok(())
            }
        }
    }

    /// Checks settings by which a table is to be made and opened, and splits them: into what is fixed when
    /// it is made, and what opens it.
    ///
    /// # Errors
    /// The first that the engine does not take.
    pub fn split(self, settings: &Settings) -> Result<(Settings, Settings), SettingError> {
        let split = on_engine!(self, D => split::<D>(settings));
        split.map_err(|error| SettingError { engine: self, error })
    }

    /// Those of `settings` whose names the engine has, for settings that are meant for several engines.
    pub fn known(self, settings: &Settings) -> Settings {
        on_engine!(self, D => {
            settings.filtered(|name| {
                names::<<D as Design>::Options>().chain(self.shape_names()).any(|it| it == name)
            })
        })
    }

    /// Those of `settings` that the engine has and by which a table is opened.
    pub fn options_of(self, settings: &Settings) -> Settings {
        on_engine!(self, D => {
            settings.filtered(|name| names::<<D as Design>::Options>().any(|it| it == name))
        })
    }

    /// Checks settings by which tables of several engines are to be opened: each engine takes those that
    /// it has.
    ///
    /// # Errors
    /// [`KnobError`] for a name that none of `engines` has, for a value that one of them does not take, and
    /// for what is fixed when a table is made.
    pub fn check_some(engines: &[Engine], settings: &Settings) -> Result<(), KnobError> {
        Engine::check_some_shaped(engines, settings)?;
        let fixed = settings.iter().find_map(|(name, _)| names::<Shape>().find(|it| *it == name));
        fixed.map_or(Ok(()), |name| Err(KnobError::Fixed(name)))
    }

    /// The same for tables that are to be made as well.
    ///
    /// # Errors
    /// [`KnobError`] for a name that none of `engines` has, and for a value that one of them does not
    /// take.
    pub fn check_some_shaped(engines: &[Engine], settings: &Settings) -> Result<(), KnobError> {
        for (name, text) in settings.iter() {
            let one = Settings::default().with(name, text);
            let mut having = engines.iter().filter(|it| !it.known(&one).is_empty()).peekable();
            if having.peek().is_none() {
                let knobs = engines.iter().flat_map(|it| [it.options(), it.shape()].concat());
                let mut known: Vec<_> = Vec::new();
                for name in knobs.map(|it| it.knob.name) {
                    if !known.contains(&name) {
                        known.push(name);
                    }
                }
                return Err(KnobError::unknown(name, known.into_iter()));
            }
            for engine in having {
                engine.split(&one).map_err(|it| it.error)?;
            }
        }
        Ok(())
    }
}

fn split<D: Design>(settings: &Settings) -> Result<(Settings, Settings), KnobError> {
    let (mut shape, mut options) = (Shape::default(), D::Options::default());
    let is_shape = |name: &str| D::SHAPE.contains(&name);
    for (name, text) in settings.iter() {
        if names::<D::Options>().any(|it| it == name) {
            options.set(name, text)?;
        } else if is_shape(name) {
            shape.set(name, text)?;
        } else {
            let known = names::<D::Options>().chain(D::SHAPE.iter().copied());
            return Err(KnobError::unknown(name, known));
        }
    }
    Ok((settings.filtered(is_shape), settings.filtered(|name| !is_shape(name))))
}

impl TableFormat {
    /// Checks settings by which such a table is to be opened, before there is one.
    ///
    /// # Errors
    /// `Invalid` for settings with which no such table can be opened.
    pub fn check_options(&self, settings: &Settings) -> Result<(), IndexError> {
        let invalid = |error: SettingError| IndexError::Invalid(error.to_string());
        self.engine.check(settings).map_err(invalid)?;
        on_engine!(self.engine, D => {
            let options = <<D as Design>::Options as Knobs>::read(settings);
            let options = options.map_err(|error| invalid(SettingError { engine: self.engine, error }))?;
            <D as Design>::check_options(&options, &self.layout()?)
        })
    }

    /// The same with the settings of its shape in place of what it has.
    ///
    /// # Errors
    /// The first that is no setting of a shape.
    pub fn shaped(self, settings: &Settings) -> Result<Self, KnobError> {
        let mut shape = Shape {
            node_bytes: self.node_bytes,
            cap_leaf: self.cap_leaf,
            cap_inner: self.cap_inner,
            bucket_bytes: self.bucket_bytes,
            nodes: self.nodes,
            check: self.check,
        };
        for (name, text) in settings.iter() {
            shape.set(name, text)?;
        }
        let Shape { node_bytes, cap_leaf, cap_inner, bucket_bytes, nodes, check } = shape;
        Ok(TableFormat { node_bytes, cap_leaf, cap_inner, bucket_bytes, nodes, check, ..self })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn settings(pairs: &[&str]) -> Settings {
        pairs.iter().map(|pair| pair.parse().unwrap()).collect()
    }

    #[test]
    fn every_knob_is_documented_and_its_default_reads_back() {
        for engine in Engine::ALL {
            let all = [engine.shape(), engine.options()].concat();
            let mut seen = Vec::new();
            for KnobDefault { knob, default } in &all {
                assert!(knob.about().ends_with('.'), "{engine} {}: {}", knob.name, knob.about());
                assert!(!seen.contains(&knob.name), "{engine} has {} twice", knob.name);
                seen.push(knob.name);
                let one = Settings::default().with(knob.name, default);
                engine.split(&one).unwrap();
            }
            assert_eq!(
                seen.contains(&farleaf_index::knobs::CACHE),
                engine.traits().cached,
                "{engine}"
            );
            assert_eq!(seen.contains(&"durability"), engine.traits().logged, "{engine}");
            assert_eq!(seen.contains(&"offload"), engine.traits().offloads, "{engine}");
        }
    }

    #[test]
    fn refusals_name_the_engine_and_what_there_is() {
        let told =
            |engine: Engine, pair: &str| engine.check(&settings(&[pair])).unwrap_err().to_string();
        let dex = told(Engine::Dex, "cahce=64MiB");
        assert!(dex.starts_with("engine dex: no setting is named \"cahce\""), "{dex}");
        assert!(dex.contains("did you mean \"cache\"?"), "{dex}");
        assert!(dex.contains("known: cache, "), "{dex}");
        let fixed = told(Engine::Dex, "node_bytes=4KiB");
        assert!(fixed.contains("node_bytes is fixed when a table is made"), "{fixed}");
        let value = told(Engine::Dex, "offload=sometimes");
        assert!(value.contains("expected never, always, adaptive, or ratio:"), "{value}");
        assert!(told(Engine::BTree, "cache=64MiB").contains("engine btree: no setting"));
    }

    #[test]
    fn settings_for_several_engines_are_taken_by_those_that_have_them() {
        let all = settings(&["cache=64MiB", "bulk_fill=0.5"]);
        Engine::check_some(Engine::ALL, &all).unwrap();
        let shape = settings(&["cap_leaf=4"]);
        Engine::check_some_shaped(Engine::ALL, &shape).unwrap();
        assert_eq!(Engine::check_some(Engine::ALL, &shape), Err(KnobError::Fixed("cap_leaf")));
        assert_eq!(Engine::BTree.known(&all), settings(&["bulk_fill=0.5"]));
        assert_eq!(Engine::Dex.known(&all), all);
        let refused = |pair| Engine::check_some(Engine::ALL, &settings(&[pair])).unwrap_err();
        assert!(refused("cahce=1MiB").to_string().contains("did you mean \"cache\"?"));
        assert!(refused("cache=1K").to_string().contains("no value of cache"));
    }

    #[test]
    fn shapes_are_set_by_name() {
        let all = settings(&["node_bytes=4KiB", "cache=1MiB", "cap-leaf=8"]);
        let (shape, options) = Engine::Dex.split(&all).unwrap();
        assert_eq!(options, settings(&["cache=1MiB"]));
        let format = TableFormat::fixed8(Engine::Dex).shaped(&shape).unwrap();
        assert_eq!((format.node_bytes, format.cap_leaf), (Some(4096), Some(8)));
        assert_eq!(format.shaped(&settings(&["node_bytes=auto"])).unwrap().node_bytes, None);
    }

    #[test]
    fn an_engine_takes_the_shape_that_its_nodes_have() {
        let bucket = settings(&["bucket_bytes=64"]);
        let (shape, options) = Engine::Dart.split(&bucket).unwrap();
        assert_eq!((&shape, options), (&bucket, Settings::default()));
        let format = TableFormat::fixed8(Engine::Dart).shaped(&shape).unwrap();
        assert_eq!(format.bucket_bytes, Some(64));
        assert!(format.layout().is_ok());
        let text =
            |engine: Engine, pair: &str| engine.split(&settings(&[pair])).unwrap_err().to_string();
        assert!(text(Engine::Dex, "bucket_bytes=64").contains("no setting is named"));
        assert!(text(Engine::Dart, "node_bytes=4KiB").contains("known: cache, "));
        for bytes in ["16", "1KiB", "many"] {
            let told = text(Engine::Dart, &format!("bucket_bytes={bytes}"));
            assert!(told.contains("expected bytes, as in 4096 or 64MiB, 32 to 512"), "{told}");
        }
        let odd = TableFormat { bucket_bytes: Some(96), ..format };
        let told = odd.layout().unwrap_err();
        assert!(matches!(told, IndexError::Invalid(_)), "{told:?}");
        assert!(told.to_string().contains("bucket size 96 is not a power of two from 32 to 512"));
    }
}
