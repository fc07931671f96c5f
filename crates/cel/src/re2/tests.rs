//! Tables of Go's syntax: what is translated, and what is rejected.

use super::{NESTING_MAX, translate};
use crate::pattern::Matcher;

/// Checks which texts an expression matches.
fn check(pattern: &str, matching: &[&str], others: &[&str]) {
    let matcher = Matcher::compile(pattern).unwrap_or_else(|error| panic!("Go compiles {pattern}: {error}"));
    for text in matching {
        assert_eq!(matcher.is_match(text), Some(true), "{pattern} matches {text:?} in Go");
    }
    for text in others {
        assert_eq!(matcher.is_match(text), Some(false), "{pattern} does not match {text:?} in Go");
    }
}

#[test]
fn expression_that_go_compiles_matches_like_in_go() {
    // Perl classes and word boundaries are ASCII.
    check(r"^[\w-]{1,63}$", &["a-b_9"], &["é", ""]);
    check(r"^\d+$", &["12"], &["١٢"]);
    check(r"^\D+$", &["١٢", "a"], &["1"]);
    check(r"^\s$", &[" ", "\t", "\n", "\r", "\u{c}"], &["\u{b}", "\u{a0}"]);
    check(r"^[^\w]$", &["é", "-"], &["a"]);
    check(r"^[\W\d]$", &["é", "1"], &["a"]);
    check(r"\bb\b", &["éb"], &["ab"]);
    check(r"a\Bb", &["ab"], &[]);
    // Braces without a count are literals.
    check(r"^{{.*}}$", &["{{a}}"], &["a"]);
    check(r"^\${[a-z]+}$", &["${abc}"], &["$abc"]);
    check(r"^x{,5}$", &["x{,5}"], &["xxx", ""]);
    check(r"^x{01}$", &["x{01}"], &["x"]);
    check(r"^x{2}$", &["xx"], &["x{2}"]);
    check(r"^x{2,}?$", &["xxx"], &["x"]);
    check(r"^a{$", &["a{"], &["a"]);
    // Brackets and set operators are literals in a class.
    check("^[a-z[]$", &["[", "b"], &["]"]);
    check("^[^[]+$", &["abc"], &["a[b"]);
    check("^[a&&b]$", &["a", "&", "b"], &["c"]);
    check("^[--/]$", &["-", ".", "/"], &["a"]);
    check("^[a~~b]$", &["a", "~"], &["c"]);
    check("^[]a]$", &["]", "a"], &["b"]);
    check("^[^]a]$", &["b"], &["]", "a"]);
    check("^[a-]$", &["a", "-"], &["b"]);
    check(r"^[a\]-]$", &["a", "]", "-"], &["b"]);
    check("^[[:alpha:]_]+$", &["ab_"], &["é", "1"]);
    check("^[[:^alpha:]]+$", &["é1"], &["a"]);
    check("^[[:x]$", &["[", ":", "x"], &["y"]);
    // Escapes.
    check(r"^\101\x41\x{41}\_\-\/$", &["AAA_-/"], &[]);
    check(r"^\Qa.b*\E+$", &["a.b*", "a.b**"], &["aab*"]);
    check(r"\Q[", &["["], &["a"]);
    check(r"^\a\f\n\r\t\v$", &["\u{7}\u{c}\n\r\t\u{b}"], &[]);
    check(r"\x{d800}|b", &["b"], &["a"]);
    check(r"^[\x{d7ff}-\x{e000}]$", &["\u{d7ff}", "\u{e000}"], &["a"]);
    // Unicode classes.
    check(r"^\pN+$", &["1١"], &["a"]);
    check(r"^\PN+$", &["a"], &["1"]);
    check(r"^\p{Greek}\p{^Greek}\P{greek}$", &["αaa"], &["aaa"]);
    check(r"^[\p{Lu}\p{Old_Italic}]$", &["A"], &["a"]);
    check(r"^\p{Uppercase_Letter}\p{Any}\p{ASCII}$", &["Aéa"], &["aaa"]);
    check(r"^\p{Cs}?\P{Cs}$", &["a"], &[]);
    // Groups and flags.
    check(r"^(?P<year>\d{4})-(?<month>\d\d)$", &["2026-01"], &["26-1"]);
    check("^(?i)ab(?-i)C$", &["ABC"], &["ABc"]);
    check("(?i:a)B", &["AB"], &["Ab"]);
    check("(?s)^a.b$", &["a\nb"], &[]);
    check("^a.b$", &["aéb"], &["a\nb"]);
    check("(?m)^b$", &["a\nb\nc"], &["ab"]);
    check(r"(?m)\Ab\z", &["b"], &["a\nb"]);
    check("(?U)a+", &["aa"], &["b"]);
    check("(?ii)a(?)b", &["AB"], &["c"]);
    check("^a(?i)*b$", &["aaB"], &["aAb"]);
    check("^(?:a*)*(?:)+^*b", &["aab"], &["c"]);
    check("^(a|)$|^()$", &["a", ""], &["b"]);
    check(r"^a*\Q\E+$", &["aa", ""], &["b"]);
    assert_eq!(Matcher::compile("a(?U)+").unwrap().find("aa"), Some("a"), "a flag before a repetition applies to it");
    assert_eq!(Matcher::compile("(?U)a+(?-U:b+)").unwrap().find("aabb"), Some("aabb"));
    check(r"^a??\Q\E?$", &["a", ""], &["aa"]);
    check(r"^ #$", &[" #"], &["#"]);
    check(r"^\<a\>$", &["<a>"], &["a"]);
}

#[test]
fn expression_that_go_rejects_has_the_error_of_go() {
    for (pattern, error) in [
        (r"a\Z", r"invalid escape sequence: `\Z`"),
        (r"\C", r"invalid escape sequence: `\C`"),
        (r"\u{41}", r"invalid escape sequence: `\u`"),
        (r"\é", r"invalid escape sequence: `\é`"),
        (r"(a)\1", r"invalid escape sequence: `\1`"),
        (r"\x{110000}", r"invalid escape sequence: `\x{110000`"),
        (r"\x{}", r"invalid escape sequence: `\x{}`"),
        (r"\xg0", r"invalid escape sequence: `\xg0`"),
        (r"a\", "trailing backslash at end of expression: ``"),
        (r"[a-\d]", r"invalid escape sequence: `\d`"),
        (r"[\b]", r"invalid escape sequence: `\b`"),
        (r"[\Qa\E]", r"invalid escape sequence: `\Q`"),
        ("[z-a]", "invalid character class range: `z-a`"),
        ("[[:word2:]]", "invalid character class range: `[:word2:]`"),
        ("x[a", "missing closing ]: `[a`"),
        ("[]", "missing closing ]: `[]`"),
        (r"\p{Grek}", r"invalid character class range: `\p{Grek}`"),
        (r"\p{Alphabetic}", r"invalid character class range: `\p{Alphabetic}`"),
        (r"\p{IsGreek}", r"invalid character class range: `\p{IsGreek}`"),
        (r"\p{sc=Greek}", r"invalid character class range: `\p{sc=Greek}`"),
        (r"\pX", r"invalid character class range: `\pX`"),
        (r"\p", r"invalid character class range: `\p`"),
        (r"\p{L", r"invalid character class range: `\p{L`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?!a)", "invalid or unsupported Perl syntax: `(?!`"),
        ("(?<=a)", "invalid named capture: `(?<=a)`"),
        ("(?x)a", "invalid or unsupported Perl syntax: `(?x`"),
        ("(?u)a", "invalid or unsupported Perl syntax: `(?u`"),
        ("(?i-)a", "invalid or unsupported Perl syntax: `(?i-)`"),
        ("(?#a)", "invalid or unsupported Perl syntax: `(?#`"),
        ("(?P<a-b>c)", "invalid named capture: `(?P<a-b>`"),
        ("(a", "missing closing ): `(a`"),
        ("a)", "unexpected ): `a)`"),
        ("*a", "missing argument to repetition operator: `*`"),
        ("(|*)", "missing argument to repetition operator: `*`"),
        ("(?i)+?", "missing argument to repetition operator: `+?`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a*?+", "invalid nested repetition operator: `*?+`"),
        ("a{2}{3}", "invalid nested repetition operator: `{2}{3}`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("a{3,2}", "invalid repeat count: `{3,2}`"),
        ("a{99999999999}", "invalid repeat count: `{99999999999}`"),
        ("a{1,99999999999}", "invalid repeat count: `{1,99999999999}`"),
        ("(a{50}){21}", "invalid repeat count: `{21}`"),
    ] {
        let found = Matcher::compile(pattern).err();
        assert_eq!(found, Some(format!("error parsing regexp: {error}")), "{pattern}");
    }
}

#[test]
fn translated_expression_contains_no_unicode_perl_class() {
    assert_eq!(translate(r"^[\w-]{1,63}$").as_deref(), Ok(r"^[0-9A-Za-z_\x2d]{1,63}$"));
    assert_eq!(translate("a.b").as_deref(), Ok("a.b"));
}

#[test]
fn pattern_of_one_megabyte_is_translated_or_rejected_without_a_quadratic_scan() {
    let check = |pattern: &str, is_valid: bool, end_of_error: &str| {
        let translated = translate(pattern);
        let shown = pattern.get(..20);
        assert_eq!(translated.is_ok(), is_valid, "{shown:?}");
        let error = translated.err().unwrap_or_default();
        assert!(error.contains(end_of_error), "{shown:?}");
        let too_large = Some("error parsing regexp: expression too large".to_owned());
        assert_eq!(Matcher::compile(pattern).err(), too_large, "{shown:?}");
    };
    const DEEP: &str = "expression nests too deeply";
    let times = 1 << 19;
    check(&format!("[{}", "[:".repeat(times)), false, "missing closing ]");
    check(&format!("[{}a]", "[:".repeat(times)), true, "");
    check(&format!("[[:alpha:]{}a]", "[:".repeat(times)), true, "");
    check(&format!("[{}:]]", "[:".repeat(times)), false, "invalid character class range");
    check(&format!("{}a{}", "(".repeat(times), ")".repeat(times)), false, DEEP);
    check(&format!("{}a{}", "(".repeat(times), ")*(?i)*".repeat(times)), false, DEEP);
    check(&format!("a{}", "(?i)*".repeat(times)), false, DEEP);
    check(&format!("{}{}", "a".repeat(times), "(?i)(?-i)".repeat(times)), true, "");
    check(&"(a*)*".repeat(times), true, "");
    check(&format!("{}{}{}", "(".repeat(80), "a".repeat(times), ")*(?i)*".repeat(80)), false, DEEP);
    check(&format!("{}{}{}", "(".repeat(60), "a".repeat(times), ")*(?i)*".repeat(60)), true, "");
}

#[test]
fn nesting_ends_where_the_nesting_of_the_engine_ends() {
    let groups = |depth: usize| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
    let repeats = |depth: usize| format!("{}a{}", "(".repeat(depth), ")*".repeat(depth));
    let again = |depth: usize| format!("a*{}", "(?i)*".repeat(depth));
    let max = NESTING_MAX as usize;
    for (pattern, is_valid) in [
        (groups(max), true),
        (groups(max + 1), false),
        (repeats(max / 2), true),
        (repeats(max / 2 + 1), false),
        (again(max / 2 - 2), true),
        (again(max / 2), false),
    ] {
        let error = (!is_valid).then(|| format!("error parsing regexp: expression nests too deeply: `{pattern}`"));
        assert_eq!(Matcher::compile(&pattern).err(), error, "{pattern}");
    }
}
