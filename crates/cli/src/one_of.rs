//! Option values: one of a few names, with a suggestion for a mistyped one.

use std::ffi::OsStr;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, ValueEnum};
use farleaf_index::suggest::hint;

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
            "\"{word}\" is not a value of {}{} (known: {})\n",
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
