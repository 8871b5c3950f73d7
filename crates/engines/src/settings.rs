//! Settings of engines: which there are, and whether an engine takes those that were given.

use farleaf_index::engine::{Engine as Design, Traits};
use farleaf_index::knobs::{Knob, KnobError, Knobs, Settings};
use farleaf_index::{IndexError, Spec};

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
        on_engine!(self, D => defaults::<<D as Design>::Shape>())
    }

    fn has_shape(self, name: &str) -> bool {
        on_engine!(self, D => names::<<D as Design>::Shape>().any(|it| it == name))
    }

    fn has_option(self, name: &str) -> bool {
        on_engine!(self, D => names::<<D as Design>::Options>().any(|it| it == name))
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
        if let Some(name) = shape.iter().find_map(|(name, _)| shape_name(&[self], name)) {
            return Err(SettingError { engine: self, error: KnobError::Fixed(name) });
        }
        debug_assert_eq!(&options, settings);
        Ok(())
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

    /// The settings of a shape among `settings`, in the words of [`TableFormat::shape`]: those that differ from the
    /// engine's defaults.
    ///
    /// # Errors
    /// The first that the engine does not take.
    pub fn shape_among(self, settings: &Settings) -> Result<Settings, SettingError> {
        let (shape, _) = self.split(settings)?;
        let shaped = TableFormat::new(self, Spec::ANY).shaped(&shape);
        Ok(shaped.map_err(|error| SettingError { engine: self, error })?.shape())
    }

    /// Those of `settings` whose names the engine has, for settings that are meant for several engines.
    pub fn known(self, settings: &Settings) -> Settings {
        settings.filtered(|name| self.has_option(name) || self.has_shape(name))
    }

    /// Those of `settings` that the engine has and by which a table is opened.
    pub fn options_of(self, settings: &Settings) -> Settings {
        settings.filtered(|name| self.has_option(name))
    }

    /// Those of `settings` that open tables of some engine: all but those that are fixed when a table is made.
    pub fn without_shape(settings: &Settings) -> Settings {
        settings.filtered(|name| shape_name(Engine::ALL, name).is_none())
    }

    /// Checks settings by which tables of several engines are to be opened: each engine takes those that
    /// it has.
    ///
    /// # Errors
    /// [`KnobError`] for a name that none of `engines` has, for a value that one of them does not take, and
    /// for what is fixed when a table is made.
    pub fn check_some(engines: &[Engine], settings: &Settings) -> Result<(), KnobError> {
        Engine::check_some_shaped(engines, settings)?;
        let fixed = settings.iter().find_map(|(name, _)| shape_name(engines, name));
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

/// The setting of that name, if it is fixed when a table of one of these engines is made and opens none.
fn shape_name(engines: &[Engine], name: &str) -> Option<&'static str> {
    if engines.iter().any(|it| it.has_option(name)) {
        return None;
    }
    let shapes = engines.iter().flat_map(|it| it.shape());
    shapes.map(|it| it.knob.name).find(|it| *it == name)
}

fn split<D: Design>(settings: &Settings) -> Result<(Settings, Settings), KnobError> {
    let (mut shape, mut options) = (D::Shape::default(), D::Options::default());
    let is_shape = |name: &str| names::<D::Shape>().any(|it| it == name);
    for (name, text) in settings.iter() {
        if names::<D::Options>().any(|it| it == name) {
            options.set(name, text)?;
        } else if is_shape(name) {
            shape.set(name, text)?;
        } else {
            let known = names::<D::Options>().chain(names::<D::Shape>());
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
            <D as Design>::check_options(&options, &self.complete()?.table::<D>(0)?)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn settings(pairs: &[&str]) -> Settings {
        pairs.iter().map(|pair| pair.parse().unwrap()).collect()
    }

    /// `--set` names a knob without its engine: each engine that has the name takes the value.
    #[test]
    fn knobs_of_one_name_take_values_of_one_kind() {
        let mut kinds = std::collections::BTreeMap::new();
        for engine in Engine::ALL {
            for KnobDefault { knob, .. } in [engine.shape(), engine.options()].concat() {
                let kind = std::mem::discriminant(&knob.kind);
                let (other, first) = *kinds.entry(knob.name).or_insert((engine, kind));
                assert_eq!(kind, first, "{} of {engine} and of {other}", knob.name);
            }
        }
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
        assert_eq!(Engine::without_shape(&all.clone().and(&shape)), all);
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
        assert_eq!(format.shape(), settings(&["node_bytes=4KiB", "cap_leaf=8"]));
        assert_eq!((format.node_bytes(), format.redo_bytes()), (4096, 3 * 4096 + 64));
        let auto = format.shaped(&settings(&["node_bytes=auto"])).unwrap();
        assert_eq!(auto.shape(), settings(&["cap_leaf=8"]));
        let given = settings(&["cache=1MiB", "node_bytes=4096", "cap_leaf=auto"]);
        assert_eq!(Engine::Dex.shape_among(&given).unwrap(), settings(&["node_bytes=4KiB"]));
        let told = format.shaped(&settings(&["bucket_bytes=64"])).unwrap_err().to_string();
        assert!(told.contains("no setting is named \"bucket_bytes\""), "{told}");
    }

    #[test]
    #[cfg(feature = "lab")]
    fn the_lab_draws_no_shape_that_a_format_states() {
        let stated = settings(&["bucket_bytes=64"]);
        let open = TableFormat::fixed8(Engine::Dart);
        let drawn = |format: &TableFormat| {
            Engine::Dart.draw(&mut fastrand::Rng::with_seed(7), format).unwrap()
        };
        let (all, rest) = (drawn(&open), drawn(&open.shaped(&stated).unwrap()));
        assert!(all.get("bucket_bytes").is_some() && rest.get("bucket_bytes").is_none());
        assert_eq!(all.filtered(|name| name != "bucket_bytes"), rest);
        let odd = open.shaped(&settings(&["bucket_bytes=96"])).unwrap();
        assert!(Engine::Dart.draw(&mut fastrand::Rng::with_seed(7), &odd).is_err());
    }

    #[test]
    fn an_engine_takes_the_shape_that_its_nodes_have() {
        let bucket = settings(&["bucket_bytes=64"]);
        let (shape, options) = Engine::Dart.split(&bucket).unwrap();
        assert_eq!((&shape, options), (&bucket, Settings::default()));
        let format = TableFormat::fixed8(Engine::Dart).shaped(&shape).unwrap();
        assert_eq!(format.shape(), bucket);
        assert_eq!(format.complete(), Ok(format));
        let text =
            |engine: Engine, pair: &str| engine.split(&settings(&[pair])).unwrap_err().to_string();
        assert!(text(Engine::Dex, "bucket_bytes=64").contains("no setting is named"));
        assert!(text(Engine::Dart, "node_bytes=4KiB").contains("known: cache, "));
        for bytes in ["16", "1KiB", "many"] {
            let told = text(Engine::Dart, &format!("bucket_bytes={bytes}"));
            assert!(told.contains("expected bytes, as in 4096 or 64MiB, 32 to 512"), "{told}");
        }
        let told = format.shaped(&settings(&["bucket_bytes=96"])).unwrap().complete().unwrap_err();
        assert!(matches!(told, IndexError::Invalid(_)), "{told:?}");
        assert!(told.to_string().contains("bucket size 96 is not a power of two from 32 to 512"));
    }
}
