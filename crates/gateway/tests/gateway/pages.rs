//! The page of commands, which is made of the table of commands.

use farleaf_gateway::{REFUSED, commands};

fn page() -> String {
    let mut text = String::from(
        "# Commands of the gateway\n\nEach command of Redis: *yes*, *partly*, or *no* and why. Made from the table of \
         commands by `cargo test -p farleaf-gateway`; with `FARLEAF_PAGES=write` the test writes this page.\n",
    );
    let mut groups: Vec<&str> = commands().map(|command| command.group).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        text.push_str(&format!("\n## {group}\n\n| command | state | does |\n|---|---|---|\n"));
        let mut all: Vec<_> = commands().filter(|command| command.group == group).collect();
        all.sort_unstable_by_key(|command| command.name);
        for command in all {
            let state = match command.differs {
                Some(differs) => format!("partly: {differs}"),
                None => "yes".to_owned(),
            };
            let name = command.name.to_uppercase();
            text.push_str(&format!("| `{name}` | {state} | {} |\n", command.about));
        }
    }
    text.push_str("\n## Not here\n\n| commands | because |\n|---|---|\n");
    for (names, reason) in REFUSED {
        let names: Vec<_> = names.iter().map(|name| format!("`{}`", name.to_uppercase())).collect();
        text.push_str(&format!("| {} | {reason} |\n", names.join(" ")));
    }
    text
}

#[test]
fn the_page_of_commands_is_that_of_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/redis-commands.md");
    if std::env::var_os("FARLEAF_PAGES").is_some_and(|value| value == "write") {
        std::fs::write(path, page()).unwrap();
    }
    let told = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(
        told,
        page(),
        "docs/redis-commands.md is behind: run this test with FARLEAF_PAGES=write"
    );
}
