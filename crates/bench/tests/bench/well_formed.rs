//! Well-formed pages: shared by the tests of one page and of every figure.
#![allow(clippy::unwrap_used)]

/// Panics unless every element of a page is closed in order.
pub(crate) fn check_well_formed(page: &str) {
    let mut open = Vec::new();
    let mut rest = page;
    while let Some(begin) = rest.find('<') {
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let tag = &rest[begin + 1..end];
        assert!(!tag.contains('<'), "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !tag.starts_with('!') && !tag.ends_with('/') {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?} are open");
    assert!(!page.contains("<script") && !page.contains("http://") || page.contains("xmlns"));
}
