#!/usr/bin/env bash
# What the compiler and clippy do not look for: unfinished code, tests that never run, characters
# beyond ASCII, lint lists that have drifted apart, references to rules and pages that do not exist, first
# lines of modules and comments that name no thing, and names of engines in code that serves all engines.
# Prints each place; exit 1 if there is any.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0

# refuse WHAT GREP-ARGS...: the pattern must not occur in any tracked Rust file.
refuse() {
    local what=$1 hits
    shift
    if hits=$(git ls-files -z '*.rs' | LC_ALL=C xargs -0 -r grep -Hn "$@"); then
        printf '%s:\n%s\n' "$what" "$hits" >&2
        bad=1
    fi
}

refuse "unfinished code" -E '\b(todo|unimplemented)!'
# Miri alone may leave tests out: it cannot run what maps files.
refuse "a test that never runs" -P '#!?\[(cfg_attr\((?!miri,).*)?\bignore\b'
refuse "characters beyond ASCII" -P '[^\x00-\x7F]'

# All after the comment that says what the file is for.
lint_lists() { sed '1,/^$/d' "crates/$1/clippy.toml"; }
for crate in engines index pool; do
    if ! diff <(lint_lists fabric) <(lint_lists "$crate") >&2; then
        echo "crates/$crate/clippy.toml and crates/fabric/clippy.toml differ" >&2
        bad=1
    fi
done

# Rules. A source or a page may cite `INV-LATCH-1` only if a module page, a doc comment or a page of docs/
# defines it: the rule's name is the first word of that line, bullet or table row.
rules='(INV(-[A-Z0-9]+)+|R-[A-Z]{2,}|(CHECK|SIM|TCP|VERBS)-[0-9]+)\b(?!(-[A-Z0-9]+)*-\*)'
defined=$(git ls-files -z '*.rs' 'docs/*.md' |
    LC_ALL=C xargs -0 -r grep -hoP '^\s*(//[/!]?)?\s*([-*|]\s+)?[`*]*\K'"$rules" | sort -u)
undefined=$(git ls-files -z '*.rs' '*.md' ':!CHANGELOG.md' |
    LC_ALL=C xargs -0 -r grep -HnoP '\b'"$rules" |
    awk -F: 'NR == FNR { known[$0]; next } !($3 in known)' <(printf '%s\n' "$defined") -)
if [ -n "$undefined" ]; then
    printf 'a rule that is defined nowhere (a module page or a page of docs/ must begin a line with it):\n%s\n' \
        "$undefined" >&2
    bad=1
fi

# Pages that comments cite. crates/check/tests/check/docs.rs checks what pages cite.
while IFS=: read -r file line page; do
    if [ ! -f "$page" ]; then
        printf 'a page that does not exist:\n%s:%s:%s\n' "$file" "$line" "$page" >&2
        bad=1
    fi
done < <(git ls-files -z '*.rs' | LC_ALL=C xargs -0 -r grep -HnoP '//.*\K\bdocs/[a-z0-9_/-]+\.md')

# First lines of modules. "Range guard: admits an operation while ..." tells a newcomer more than "Who may ...".
headless=$(git ls-files -z '*.rs' | LC_ALL=C xargs -0 -r awk '
    FNR == 1 { seen = 0 }
    /^\/\/!/ && !seen {
        seen = 1
        if (tolower($2) ~ /^(who|whoever|whose|what|whatever|where|wherever|how|whether|which|when|whenever)([^a-z]|$)/)
            print FILENAME ":" FNR ":" $0
    }')
if [ -n "$headless" ]; then
    printf 'the first line of a module (write "Noun: what it does", such as "Range guard: admits ..."):\n%s\n' \
        "$headless" >&2
    bad=1
fi

# Comments that name nobody: "Whether ..." is "Returns whether ...", "What ..." the thing itself. The list of crates
# only grows.
plain=('crates/bench/*.rs' 'crates/check/*.rs' 'crates/cli/*.rs' 'crates/cluster/*.rs' 'crates/engines/src/*.rs'
    'crates/fabric/*.rs' 'crates/fuzz-targets/*.rs' 'crates/harness/*.rs' 'crates/index/src/*.rs' 'crates/store/*.rs'
    'crates/threads/*.rs')
if headless=$(git ls-files -z "${plain[@]}" | LC_ALL=C xargs -0 -r grep -HnE \
    '^\s*//[/!]? (Who|Whoever|Whose|Whom|What|Whatever|Where|Wherever|How|Whether|Which|When|Whenever)\b'); then
    printf 'a comment that names no actor and no thing (write "The result of ...", "Returns whether ..."):\n%s\n' \
        "$headless" >&2
    bad=1
fi

# Long sentences. In each page, at most 8 of 100 sentences have more than 25 words. Code, tables and headings do not
# count, and `code` in a line is one word.
while IFS= read -r page; do
    if ! LC_ALL=C perl -0777 -ne '
        my ($long, $all, $rust, $block, @blocks) = (0, 0, $ARGV =~ /\.rs$/, "");
        s/```.*?```//gs;
        for (split /\n/) {
            if ($rust) { s{^\s*//[/!]?\s?}{} or next }
            my $begins = s/^\s*([-*]|\d+\.)\s+//;
            if (/^\s*$|^[#|]/ || $begins) { push @blocks, $block; $block = "" }
            $block .= " $_" unless /^[#|]/;
        }
        for (@blocks, $block) {
            s/`[^`]*`/X/g;
            for (split /(?<=[.!?])\s+(?=[A-Z\[*(])/) {
                my $words = () = /\S+/g;
                $all++ if $words;
                $long++ if $words > 25;
            }
        }
        # Of a page without tables, ten sentences at least: else its text was not read.
        my $least = $ARGV =~ m{^docs/(papers|measurements)/|^docs/(engines|glossary|redis-commands)\.md$} ? 1 : 10;
        if ($all < $least || $long > 0.08 * $all) { print STDERR "$ARGV: $long of $all sentences\n"; exit 1 }' "$page"; then
        echo "a page with too many sentences above 25 words (cut them in two)" >&2
        bad=1
    fi
done < <(git ls-files 'docs/*.md' README.md CHANGELOG.md crates/engines/src/smart/own_leaves.rs)

# Names of engines. Code above and below the engines asks for traits and settings, never for a name. Tests and
# repro/, which repeats the papers, may. So may compute/owned.rs, which says what a partitioned engine is made of.
# The word art is no sign: it is English. Nor is that of an example.
folders=$(git ls-files 'crates/engines/src/*/mod.rs' | cut -d/ -f4 | grep -vE '^(art|example.*)$' | paste -sd'|')
types=$(sed -n 's/^    \([A-Z][A-Za-z]*\): crate::.*/\1/p' crates/engines/src/lib.rs | grep -v '^Example' | paste -sd'|')
if named=$(git ls-files -z 'crates/*/src/*.rs' |
    grep -zE '^crates/(store|check|cli|cluster|pool|fabric|bench|harness|index)/src/' |
    grep -zvE '^crates/(bench/src/repro|index/src/engines)/|^crates/index/src/compute/owned\.rs$' |
    grep -zvE '/tests/|/([a-z0-9_]+_)?tests\.rs$' |
    LC_ALL=C xargs -0 -r awk -v names="(^|[^A-Za-z0-9_])($folders|$types)([^A-Za-z0-9_]|\$)" '
        # A test module inside of a file ends the file.
        FNR == 1 { test = attribute = 0 }
        attribute && /^mod [a-z_]+ \{/ { test = 1 }
        { attribute = /^#\[cfg\((all\()?test[,)]/; gsub(/docs\/[a-z0-9_\/-]+\.md/, "") }
        !test && $0 ~ names {
            print FILENAME ":" FNR ":" $0
        }') && [ -n "$named" ]; then
    printf 'the name of an engine (ask for its traits or settings):\n%s\n' "$named" >&2
    bad=1
fi

# An engine uses the kit and compute/, never another engine. A variant may use the engine that it is a variant of, and
# says so in its mod.rs.
engines=$(git ls-files 'crates/engines/src/*/mod.rs' | cut -d/ -f4 | paste -sd'|')
variants=$(git grep -oE '^//! Variant of [a-z_]+' -- 'crates/engines/src/*/mod.rs' |
    sed -E 's|^crates/engines/src/([a-z_]+)/mod.rs:.* ([a-z_]+)$|\1>\2|' | paste -sd' ')
if foreign=$(git ls-files -z 'crates/engines/src/*/*.rs' |
    LC_ALL=C xargs -0 -r awk -v engines="$engines" -v variants=" $variants " '
        FNR == 1 { split(FILENAME, part, "/"); own = part[4] }
        {
            line = $0
            while (match(line, "(engines|super::super|crate)::(" engines ")([^A-Za-z0-9_]|$)")) {
                split(substr(line, RSTART, RLENGTH), names, "::")
                used = names[length(names)]
                sub(/[^a-z_].*$/, "", used)
                if (used != own && !index(variants, " " own ">" used " ")) print FILENAME ":" FNR ":" $0
                line = substr(line, RSTART + RLENGTH)
            }
        }') && [ -n "$foreign" ]; then
    printf 'an engine that uses another (move what both need into the kit):\n%s\n' "$foreign" >&2
    bad=1
fi

# Arrows inside of crates. The fabric's contract knows no fabric. Trees know no compute servers and compute servers no trees, and the parts that
# messages, maps and guards are made of know neither an open table nor an engine.
#   arrow FILES NAMES: none of these files imports one of these modules or types of the crate.
arrow() {
    local files=$1 names=$2 hits
    if hits=$(git ls-files -z "crates/$files" |
        LC_ALL=C xargs -0 -r perl -0777 -ne '
            # Each import as one line, its braces undone one level deep.
            s{//[^\n]*}{}g;
            while (/\buse\s+(crate|super(?:::super)*)::([^;]*);/g) {
                my ($root, $path) = ($1, $2);
                $path =~ s/\s+//g;
                my @names = $path =~ /^\{(.*)\}$/s ? split(/,(?![^{]*\})/, $1) : ($path);
                for (@names) { print "$ARGV: use ${root}::$_\n" if /^('"$names"')(::|$)/ }
            }
            while (/\bcrate::('"$names"')::/g) { print "$ARGV: crate::$1\n" }' | sort -u) && [ -n "$hits" ]; then
        printf 'an import that points the wrong way (docs/design/interface.md):\n%s\n' "$hits" >&2
        bad=1
    fi
}

arrow 'fabric/src/contract.rs' 'any|mapped|sim|tcp|verbs|AnyEndpoint|AnyFabric'
arrow 'index/src/compute/**' 'bnode|blink|BlinkOptions'
arrow 'index/src/bnode/**' 'compute'
arrow 'index/src/blink/**' 'compute'
for file in messages/mod messages/codec owned_table ownership/mod ownership/guard ownership/partitions \
    ownership/two_slots ownership/load ownership/op_counters; do
    [ -f "crates/index/src/compute/$file.rs" ] || { echo "scripts/check-sources.sh: no $file.rs" >&2; bad=1; }
    arrow "index/src/compute/$file.rs" 'index|engine|Index|Engine'
done

# Type names. One name stands for one thing in a crate, so that a search finds it. scripts/type-names-twice.txt
# lists those that stand for more, each with its reason, and only shrinks. Modules built alike on purpose may repeat
# theirs: each fabric's Endpoint. Types within a test module or a macro do not count.
twice=$(mktemp)
trap 'rm -f "$twice"' EXIT
sed 's/ *#.*//' scripts/type-names-twice.txt >"$twice"
if unreasoned=$(grep -vE '^[a-z]+ [A-Za-z0-9]+ # .' scripts/type-names-twice.txt); then
    printf 'a line of scripts/type-names-twice.txt without a reason (crate Name # reason):\n%s\n' "$unreasoned" >&2
    bad=1
fi
repeated=$(git ls-files -z 'crates/*/src/*.rs' | grep -zvE '/tests/|/([a-z0-9_]+_)?tests\.rs$' |
    LC_ALL=C xargs -0 -r awk '
        FNR == 1 { test = attribute = 0; split(FILENAME, part, "/") }
        attribute && /^mod [a-z_]+ \{/ { test = 1 }
        { attribute = /^#\[cfg\((all\()?test[,)]/ }
        !test && /^(pub(\([a-z: ]+\))? )?(struct|enum|trait|type) [A-Z]/ {
            line = $0
            sub(/^(pub(\([a-z: ]+\))? )?(struct|enum|trait|type) /, "", line)
            match(line, /^[A-Za-z0-9]+/)
            print part[2], substr(line, 1, RLENGTH)
        }' | LC_ALL=C sort | uniq -d | grep -v ' Endpoint$')
if hits=$(grep -vxF -f "$twice" <<<"$repeated") && [ -n "$hits" ]; then
    printf 'a type name that stands for two things in one crate (say whose each is):\n%s\n' "$hits" >&2
    bad=1
fi
if done_with=$(grep -vxF -f <(echo "$repeated") "$twice"); then
    printf 'stands for one thing only, take it off scripts/type-names-twice.txt:\n%s\n' "$done_with" >&2
    bad=1
fi

# Seeded bugs. Each stands in a list by which it is hunted, or in the test that finds it.
while read -r canary; do
    if ! git grep -qwE "&?$canary" -- '*/lab.rs' '*/canary.rs' 'crates/*/tests/*'; then
        printf 'a seeded bug that no list names: %s\n' "$canary" >&2
        bad=1
    fi
done < <(git grep -hoE '^    pub(\([a-z]+\))? [A-Z_]+ =' -- 'crates/*/src/*.rs' | grep -oE '[A-Z_]{3,}')

exit "$bad"
