//! Page tests: every file, test and page that a page names exists.
//!
//! In text between backticks, `crates/x/src/y.rs` names a file or folder of the repository, and
//! `crates/x/tests/y.rs::name` a function in it. In the glossary and the papers' pages every text with a
//! slash and a known ending is such a name; in other pages those that begin with a top folder. Code
//! blocks are left out. Links lead to files, and `#...` to a heading.

use std::fs;
use std::path::{Path, PathBuf};

/// Endings of names that are taken for files.
const ENDINGS: [&str; 8] = [".rs", ".md", ".sh", ".toml", ".json", ".svg", ".hpp", "/"];
/// Folders whose files any page may name.
const FOLDERS: [&str; 7] =
    ["crates/", "docs/", "scripts/", "fuzz/", "dist/", "python/", "examples/"];

#[test]
fn pages_name_what_exists() {
    let root = root();
    let mut pages: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(PathBuf::from).to_vec();
    collect_pages(&root, Path::new("docs"), &mut pages);
    assert!(pages.contains(&PathBuf::from("docs/glossary.md")), "docs/glossary.md is missing");
    assert!(pages.contains(&PathBuf::from("docs/papers/dex.md")), "docs/papers/dex.md is missing");

    let problems: Vec<String> = pages
        .iter()
        .flat_map(|page| {
            let text = fs::read_to_string(root.join(page)).expect("a page is UTF-8");
            check_page(&root, page, &text)
        })
        .collect();
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn a_wrong_name_is_reported_with_its_page_and_line() {
    let here = "crates/check/tests/check/docs.rs";
    let text = format!(
        "# Heading of a page\n\
         `{here}`, `{here}::root`, `crates/check/tests/`, `a::b`, `no/file/at/all`\n\
         `crates/check/tests/gone.rs`\n\
         `{here}::no_such_test`\n\
         [a page](gone.md) and [a heading](#heading-of-a-page) and [none](#nowhere)\n\
         ```sh\n\
         `crates/check/tests/gone.rs` is code here\n\
         ```\n\
         ![a picture](../pictures/gone.svg)\n"
    );
    let problems = check_page(&root(), Path::new("docs/papers/x.md"), &text);
    assert_eq!(
        problems,
        [
            "docs/papers/x.md:3: `crates/check/tests/gone.rs`: there is no such file",
            "docs/papers/x.md:4: `crates/check/tests/check/docs.rs::no_such_test`: the file has no function of that name",
            "docs/papers/x.md:5: (gone.md): there is no file docs/papers/gone.md",
            "docs/papers/x.md:5: (#nowhere): docs/papers/x.md has no heading of that name",
            "docs/papers/x.md:9: (../pictures/gone.svg): there is no file docs/pictures/gone.svg",
        ]
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn collect_pages(root: &Path, folder: &Path, pages: &mut Vec<PathBuf>) {
    let mut names: Vec<PathBuf> = fs::read_dir(root.join(folder))
        .expect("a folder of pages")
        .map(|entry| folder.join(entry.expect("an entry").file_name()))
        .collect();
    names.sort();
    for name in names {
        if root.join(&name).is_dir() {
            collect_pages(root, &name, pages);
        } else if name.extension().is_some_and(|ending| ending == "md") {
            pages.push(name);
        }
    }
}

/// Checks the names and links of one page, whose path is relative to the repository's root.
fn check_page(root: &Path, page: &Path, text: &str) -> Vec<String> {
    let is_index = page.ends_with("glossary.md") || page.starts_with("docs/papers");
    let mut problems = Vec::new();
    let mut is_code = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        let mut report =
            |what: String| problems.push(format!("{}:{}: {what}", page.display(), at + 1));
        for span in line.split('`').skip(1).step_by(2) {
            if is_path(span, is_index)
                && let Err(why) = check_name(root, span)
            {
                report(format!("`{span}`: {why}"));
            }
        }
        for link in links(line) {
            if let Err(why) = check_link(root, page, text, link) {
                report(format!("({link}): {why}"));
            }
        }
    }
    problems
}

fn is_path(span: &str, is_index: bool) -> bool {
    let file = span.split("::").next().unwrap_or(span);
    file.contains('/')
        && !file.contains(|c: char| c.is_whitespace() || "*{}<>$()|".contains(c))
        && (FOLDERS.iter().any(|folder| file.starts_with(folder))
            || is_index && ENDINGS.iter().any(|ending| file.ends_with(ending)))
}

fn check_name(root: &Path, span: &str) -> Result<(), String> {
    let (file, function) = match span.split_once("::") {
        Some((file, function)) => (file, Some(function)),
        None => (span, None),
    };
    if !root.join(file).exists() {
        return Err("there is no such file".into());
    }
    let Some(function) = function else { return Ok(()) };
    let source = fs::read_to_string(root.join(file)).map_err(|error| error.to_string())?;
    let head = format!("fn {function}");
    let has = source
        .match_indices(&head)
        .any(|(at, _)| source[at + head.len()..].starts_with(['(', '<']));
    if has { Ok(()) } else { Err("the file has no function of that name".into()) }
}

/// Targets of links and pictures: `[..](target)`, `src="target"`, `srcset="target"`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let after = |open: &'static str, close: char| {
        line.match_indices(open)
            .filter_map(move |(at, _)| line[at + open.len()..].split(close).next())
    };
    after("](", ')').chain(after("src=\"", '"')).chain(after("srcset=\"", '"'))
}

fn check_link(root: &Path, page: &Path, text: &str, link: &str) -> Result<(), String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(());
    }
    let (file, heading) = match link.split_once('#') {
        Some((file, heading)) => (file, Some(heading)),
        None => (link, None),
    };
    let target = if file.is_empty() { page.to_path_buf() } else { resolve(page, file) };
    if !file.is_empty() && !root.join(&target).exists() {
        return Err(format!("there is no file {}", target.display()));
    }
    let Some(heading) = heading else { return Ok(()) };
    let other;
    let text = if file.is_empty() {
        text
    } else {
        other = fs::read_to_string(root.join(&target)).map_err(|error| error.to_string())?;
        &other
    };
    if text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading) {
        Ok(())
    } else {
        Err(format!("{} has no heading of that name", target.display()))
    }
}

/// The path that `link` has from the root, if it stands in `page`.
fn resolve(page: &Path, link: &str) -> PathBuf {
    let mut target = page.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(link).components() {
        match part {
            std::path::Component::ParentDir => {
                target.pop();
            }
            part => target.push(part),
        }
    }
    target
}

/// The name that a heading has in links.
fn anchor(line: &str) -> String {
    line.trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}
