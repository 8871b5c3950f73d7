//! Cover: the cells of suite, engine and format that the suites go through when an engine goes short.
//!
//! All products of them are too many. So a suite takes one format of each engine, by a Latin square: suite number *s*
//! takes of engine number *e* the formats whose numbers are s + e, modulo the formats. Each pair of a suite and an engine
//! then occurs. Each pair of an engine and a format does if there are as many suites as formats, and each pair of a suite
//! and a format if there are as many engines. If an engine has more formats than there are suites, a suite takes several.
//!
//! `FARLEAF_FIRST` moves the square on by so many, so that in the end every product is run.

use farleaf_engines::Engine;

use crate::{Depth, depth};

/// Returns whether suite number `suite` of `suites` goes through format number `format` of the `formats` of `engine`:
/// always if the engine goes in full, else if the cover has this cell.
pub fn covers(
    (suite, suites): (usize, usize),
    engine: Engine,
    (format, formats): (usize, usize),
) -> bool {
    let first = std::env::var("FARLEAF_FIRST").ok().and_then(|first| first.parse().ok());
    let number = Engine::ALL.iter().position(|it| *it == engine).unwrap_or(0);
    let at = suite + number + first.unwrap_or(0);
    depth(engine) == Depth::Full || is_cell(at, suites, (format, formats))
}

fn is_cell(at: usize, suites: usize, (format, formats): (usize, usize)) -> bool {
    let rows = formats.min(suites);
    format % rows == at % rows
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The cells of so many suites, engines and formats.
    fn cells(suites: usize, engines: usize, formats: usize, first: usize) -> Vec<[usize; 3]> {
        let all = (0..suites).flat_map(|suite| (0..engines).map(move |engine| (suite, engine)));
        let all = all.flat_map(|(suite, engine)| (0..formats).map(move |it| [suite, engine, it]));
        all.filter(|[suite, engine, format]| {
            is_cell(suite + engine + first, suites, (*format, formats))
        })
        .collect()
    }

    #[test]
    fn every_pair_is_covered_by_few_cells() {
        for (suites, engines, formats) in [(10, 12, 8), (10, 11, 7), (8, 12, 11)] {
            for first in 0..8 {
                let cells = cells(suites, engines, formats, first);
                let pairs = |a: usize, b: usize| {
                    cells.iter().map(|cell| (cell[a], cell[b])).collect::<BTreeSet<_>>().len()
                };
                assert_eq!(pairs(0, 1), suites * engines);
                assert_eq!(pairs(1, 2), engines * formats);
                assert_eq!(pairs(0, 2), suites * formats);
                let most = suites * engines * formats.div_ceil(suites);
                assert!(cells.len() <= most, "{} cells", cells.len());
            }
        }
    }

    #[test]
    fn the_square_moves_through_all_products() {
        let all: BTreeSet<[usize; 3]> = (0..8).flat_map(|first| cells(10, 12, 8, first)).collect();
        assert_eq!(all.len(), 10 * 12 * 8);
    }
}
