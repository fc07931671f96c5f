//! Places the functions of the server's start side by side in the shipped binary.
//!
//! The kernel maps code in blocks of 64 KiB around each page that runs. The functions that a start runs lie between those
//! of requests if nothing orders them, and an idle server then maps most of its code. The counts of a start say which
//! functions run. The standard library is compiled without counters; placing its functions together, too, saved no
//! memory.
//!
//! The compiler marks functions as hot or unlikely from the counts. They get sections of their own, so that the code of
//! requests does not lie between code that never runs. That saves an idle server another megabyte.
//! Source: `--symbol-ordering-file` and `-z keep-text-section-prefix` of lld(1).

use std::path::Path;

/// The names of the functions in a listing of `llvm-profdata show --all-functions`. A function without an external name
/// has its file before a semicolon.
pub(crate) fn functions(listing: &str) -> Vec<&str> {
    let names = listing.lines().filter_map(|line| line.strip_prefix("  ")?.strip_suffix(':'));
    names.filter(|name| !name.starts_with(' ')).map(|name| name.rsplit(';').next().unwrap_or(name)).collect()
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

    use super::{flags, functions};

    #[test]
    fn functions_are_the_names_of_the_listing() {
        let listing = "Counters:\n  _RNv4main:\n    Hash: 0x01\n    Counters: 2\n  lib.1-cgu.0;_RNv5local:\n    Hash: 0x02\n    \
                       Counters: 1\nInstrumentation level: IR  entry_first = 0\nTotal functions: 2\n";
        assert_eq!(functions(listing), ["_RNv4main", "_RNv5local"]);
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
