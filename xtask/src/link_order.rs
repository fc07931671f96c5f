//! Places the functions of an idle server side by side in the shipped binary, and those of its start behind them.
//!
//! The kernel maps code in blocks of 64 KiB around each page that runs. The functions that an idle server runs lie between
//! those of requests if nothing orders them, and an idle server then maps most of its code. The counts of two runs say
//! which functions run: one that stops soon after its start, and one that idles for a while before it stops. Only the
//! functions of an idle server stay in memory after the server has unmapped its code once (`start_code.rs` of the
//! command line). The standard library is compiled without counters; placing its functions together, too, saved no memory.
//!
//! The compiler marks functions as hot or unlikely from the counts. They get sections of their own, so that the code of
//! requests does not lie between code that never runs. That saves an idle server another megabyte.
//! Source: `--symbol-ordering-file` and `-z keep-text-section-prefix` of lld(1).

use std::collections::BTreeMap;
use std::path::Path;

/// The functions in the order in which they are placed: first those that ran more often in the idle run than in the
/// short one, then the others of both runs. Both are listings of `llvm-profdata show --all-functions --counts`.
pub(crate) fn order(short: &str, idle: &str) -> Vec<String> {
    let (short, idle) = (counts(short), counts(idle));
    let is_idle = |name: &str| idle.get(name).is_some_and(|count| *count > with_noise(short.get(name)));
    let (mut first, mut second): (Vec<&str>, Vec<&str>) =
        idle.keys().chain(short.keys().filter(|name| !idle.contains_key(*name))).partition(|name| is_idle(name));
    first.append(&mut second);
    first.into_iter().map(str::to_owned).collect()
}

/// The highest count of an idle run that its start alone explains, from the count of another start, whose tasks were
/// scheduled differently.
fn with_noise(count: Option<&u64>) -> u64 {
    let count = count.copied().unwrap_or(0);
    count + count / 50 + 2
}

/// The executed blocks of each function in a listing. A function without an external name has its file before a
/// semicolon.
fn counts(listing: &str) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    let mut function = None;
    for line in listing.lines() {
        let Some(text) = line.strip_prefix("  ") else { continue };
        if let Some(blocks) = text.strip_prefix("  Block counts: [").and_then(|text| text.strip_suffix(']')) {
            let Some(name) = function.take() else { continue };
            let blocks = blocks.split(", ").filter_map(|count| count.parse::<u64>().ok());
            let total = counts.entry(name).or_insert(0_u64);
            *total = blocks.fold(*total, u64::saturating_add);
        } else if let Some(name) = text.strip_suffix(':').filter(|name| !name.starts_with(' ')) {
            function = name.rsplit(';').next();
        }
    }
    counts
}

/// The flags of rustc that place the functions of this file first, one name per line. `None` for a target that rustc
/// does not link with lld. Other names are ignored: the compiler has inlined those functions.
pub(crate) fn flags(target: &str, functions: &Path) -> Option<Vec<String>> {
    (target == "x86_64-unknown-linux-gnu").then(|| {
        let order = format!("--symbol-ordering-file={}", functions.display());
        let flags = [order.as_str(), "--no-warn-symbol-ordering", "-z", "keep-text-section-prefix"];
        // `-Wl,` would split a path at a comma.
        flags.iter().flat_map(|flag| ["-Clink-arg=-Xlinker".to_owned(), format!("-Clink-arg={flag}")]).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{flags, order};

    fn listing(functions: &[(&str, &str)]) -> String {
        let functions = functions.iter().map(|(name, counts)| {
            format!("  {name}:\n    Hash: 0x01\n    Counters: 2\n    Block counts: [{counts}]\n")
        });
        let end = "Instrumentation level: IR  entry_first = 0\nTotal functions: 2\n";
        format!("Counters:\n{}{end}", functions.collect::<String>())
    }

    #[test]
    fn functions_of_an_idle_server_come_before_those_of_its_start() {
        let short = listing(&[("_RNv4main", "1, 0"), ("lib.1-cgu.0;_RNv4tick", "4, 4"), ("_RNv9only_here", "1")]);
        let idle = listing(&[("_RNv4main", "1, 1"), ("lib.1-cgu.0;_RNv4tick", "60, 40"), ("_RNv6minute", "9, 0")]);
        assert_eq!(order(&short, &idle), ["_RNv4tick", "_RNv6minute", "_RNv4main", "_RNv9only_here"]);
    }

    #[test]
    fn functions_that_two_starts_run_about_as_often_are_no_functions_of_an_idle_server() {
        let both = |poll: &str| listing(&[("_RNv1a", "1"), ("_RNv4poll", poll)]);
        assert_eq!(order(&both("1000, 20"), &both("1020, 21")), ["_RNv1a", "_RNv4poll"]);
        assert_eq!(order(&both("1000, 20"), &both("1020, 30")), ["_RNv4poll", "_RNv1a"]);
    }

    #[test]
    fn functions_are_ordered_only_where_rustc_links_with_lld() {
        let file = Path::new("/a, b/counts.functions");
        let expected = Some("-Clink-arg=--symbol-ordering-file=/a, b/counts.functions");
        assert_eq!(flags("x86_64-unknown-linux-gnu", file).as_ref().map(|flags| flags[1].as_str()), expected);
        assert_eq!(flags("x86_64-unknown-linux-musl", file), None);
        assert_eq!(flags("aarch64-apple-darwin", file), None);
    }
}
