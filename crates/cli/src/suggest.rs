//! Suggestions: find the names that the caller probably means.

use std::ffi::OsStr;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, ValueEnum};

/// The name of `known` nearest to `word`, if one is near enough to be a slip.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let edits_max = (word.chars().count() / 3).clamp(1, 4);
    known
        .into_iter()
        .map(|name| (strsim::osa_distance(&word, &name.to_lowercase()), name))
        .filter(|(edits, _)| *edits <= edits_max)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}

/// `; did you mean "x"?`, or nothing.
pub(crate) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default()
}

/// Reads one of a few names, and suggests the nearest for one that is not known.
#[derive(Clone)]
pub(crate) struct OneOf<T>(PhantomData<T>);

impl<T> OneOf<T> {
    pub(crate) fn names() -> Self {
        OneOf(PhantomData)
    }
}

impl<T: ValueEnum + Clone + Send + Sync + 'static> TypedValueParser for OneOf<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        option: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let word = value.to_string_lossy();
        if let Ok(value) = T::from_str(&word, false) {
            return Ok(value);
        }
        let known: Vec<PossibleValue> = self.possible_values().into_iter().flatten().collect();
        let names = || known.iter().map(PossibleValue::get_name);
        let message = format!(
            "\"{word}\" is none of the values of {}{} (known: {})\n",
            option.map(ToString::to_string).unwrap_or_default(),
            hint(&word, names()),
            names().collect::<Vec<_>>().join(", ")
        );
        let mut error = clap::Error::raw(ErrorKind::InvalidValue, message).with_cmd(command);
        if let Some(option) = option {
            error.insert(ContextKind::InvalidArg, ContextValue::String(option.to_string()));
        }
        Err(error)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(T::value_variants().iter().filter_map(T::to_possible_value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_corrected_and_strangers_are_not() {
        assert_eq!(nearest("nmae", ["id", "name"]), Some("name"));
        assert_eq!(nearest("Name", ["id", "name"]), Some("name"));
        assert_eq!(nearest("colour", ["id", "name"]), None);
        assert_eq!(hint("btre", ["btree"]), "; did you mean \"btree\"?");
        assert_eq!(hint("quux", ["btree"]), "");
    }
}
