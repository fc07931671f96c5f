//! Tests of the layout, against the output of Go's YAML library.

use proptest::prelude::*;

use super::*;

fn check(json: &str, expected: &str) {
    let yaml = from_json(json.as_bytes()).unwrap();
    assert_eq!(std::str::from_utf8(&yaml).unwrap(), expected, "{json}");
}

#[test]
fn yaml_document_has_the_layout_of_go_yaml() {
    check("{}", "{}\n");
    check("[]", "[]\n");
    check("7", "7\n");
    check(r#"{"b":1,"a":{"c":[],"b":{}}}"#, "a:\n  b: {}\n  c: []\nb: 1\n");
    check(r#"{"l":[1,[2,3],{"b":1,"a":[true]},"x"]}"#, "l:\n- 1\n- - 2\n  - 3\n- a:\n  - true\n  b: 1\n- x\n");
    check(r#"{"a10":1,"a9":2,"a":3,"A":4,"1":5}"#, "\"1\": 5\nA: 4\na: 3\na9: 2\na10: 1\n");
    check(r#"{"v":[true,false,null]}"#, "v:\n- true\n- false\n- null\n");
}

fn check_string(text: &str, expected: &str) {
    check(&listwatch_json::json!({ "k": text }).to_string(), &format!("k: {expected}\n"));
}

#[test]
fn yaml_number_has_the_format_of_go() {
    for (json, expected) in [
        ("0", "0"),
        ("-12345678", "-12345678"),
        ("18446744073709551615", "18446744073709551615"),
        ("0.0", "0"),
        ("1.0", "1"),
        ("-1.5", "-1.5"),
        ("0.0001", "0.0001"),
        ("0.00015", "0.00015"),
        ("0.00001", "1e-05"),
        ("-1.25e-7", "-1.25e-07"),
        ("100000.0", "100000"),
        ("999999.5", "999999.5"),
        ("1000000.0", "1e+06"),
        ("1234567.5", "1.2345675e+06"),
        ("1200000.0", "1.2e+06"),
        ("1e21", "1e+21"),
        ("123456789012345678901", "1.2345678901234568e+20"),
        ("1.5e300", "1.5e+300"),
        ("5e-324", "5e-324"),
        // Two shortest decimals are equally near to these values.
        ("575319114565030.25", "5.753191145650302e+14"),
        ("999999.00048828125", "999999.0004882812"),
    ] {
        check(json, &format!("{expected}\n"));
    }
}

#[test]
fn yaml_string_has_the_quotes_of_go_yaml() {
    for (text, expected) in [
        ("plain text", "plain text"),
        ("yellow", "yellow"),
        ("- a", "'- a'"),
        ("-", "'-'"),
        ("-a", "-a"),
        ("a - b", "a - b"),
        ("? a", "'? a'"),
        ("?a", "?a"),
        ("a: b", "'a: b'"),
        ("a:", "'a:'"),
        ("a:\tb", "\"a:\\tb\""),
        ("a:b", "a:b"),
        ("a #b", "'a #b'"),
        ("#b", "'#b'"),
        ("a#b", "a#b"),
        ("it's", "it's"),
        ("'s: x", "'''s: x'"),
        ("*", "'*'"),
        ("a*", "a*"),
        (" a", "' a'"),
        ("a ", "'a '"),
        ("a\tb", "\"a\\tb\""),
        ("ä€", "ä€"),
        ("{a}", "'{a}'"),
        ("a,b", "a,b"),
        ("---", "'---'"),
        ("...a", "'...a'"),
        ("=", "="),
        ("<<", "<<"),
        ("a\nb", "|-\n  a\n  b"),
        ("a\nb\n", "|\n  a\n  b"),
        ("\n", "|2+\n"),
        ("a\n\n", "|+\n  a\n"),
        ("a\n\nb", "|-\n  a\n\n  b"),
        (" a\nb", "|2-\n   a\n  b"),
        ("a\n b", "|-\n  a\n   b"),
        ("\na", "|2-\n\n  a"),
        ("a \nb", "\"a \\nb\""),
        ("a\nb ", "\"a\\nb \""),
        ("a\n\tb", "\"a\\n\\tb\""),
    ] {
        check_string(text, expected);
    }
}

#[test]
fn yaml_string_that_reads_as_another_type_has_double_quotes() {
    let check = |quoted: bool, texts: &[&str]| {
        for text in texts {
            check_string(text, &if quoted { format!("\"{text}\"") } else { (*text).to_owned() });
        }
    };
    // Words of `resolve.go`.
    check(true, &["", "~", "null", "true", "True", "no", "y", "Off", ".nan", "-.Inf"]);
    check(false, &["nULL", "tRUE", "+.nan", "nan", "inf", "-inf", "+Infinity", "-nan"]);
    // Integers, with underscores after the first character.
    check(true, &["7", "-7", "+7", "0", "089", "1_000", "1__0_", "0_", "18446744073709551616"]);
    check(false, &["_1", "500m", "--1", "+-1", "1 0", "1x1", "0z1"]);
    // Integers with a prefix: unsigned ones have 64 bits, signed ones 63.
    check(true, &["0x1F", "0X1f", "-0x1F", "+0x1F", "0b101", "0B1", "-0b1", "0o17", "0O7", "0x_1"]);
    check(true, &["0xffffffffffffffff", "+0x7fffffffffffffff", "-0x8000000000000000", "0b-1", "0b+1"]);
    check(false, &["0x", "0x1G", "0b2", "0o8", "0x-1", "0B-1", "-0b-1", "+0b-1", "0b-"]);
    check(false, &["0x10000000000000000", "+0x8000000000000000", "-0x8000000000000001"]);
    // Floats, with underscores between digits if they begin with a point.
    check(true, &["1.5", "-1.", "+.5", ".5", "1e3", "1E+3", "-1.5e-3", "1_0.5", ".5_5", ".1_2_3", "09.5"]);
    check(false, &["1.2.3", "10.0.0.1", "1e", "1e+", "+.", "-.e1", "1.5f", ".e1", ".5e"]);
    check(false, &["1e999", &"9".repeat(400)]);
    check(false, &["._5", ".5_", ".5__5", ".5_e1", ".5e_1"]);
    // Numbers to the base 60.
    check(true, &["1:30", "-1:30", "+1:30", "1:5", "1_0:30", "190:20:30", "1:30.15", "1:30.", "1:30._5"]);
    check(false, &["80:8080", "1:60", "1:300", "1::3", "1a:30", "1.5:30", "+_1:30", "-:30", "1:30.x"]);
}

#[test]
fn yaml_string_that_reads_as_a_time_has_double_quotes() {
    let check = |quoted: bool, texts: &[&str]| {
        for text in texts {
            check_string(text, &if quoted { format!("\"{text}\"") } else { (*text).to_owned() });
        }
    };
    check(true, &["2024-05-01", "2024-5-1", "2024-12-31", "2024-02-29", "2000-02-29", "0000-02-29"]);
    check(false, &["2023-02-29", "1900-02-29", "2024-02-30", "2024-04-31", "2024-05-32", "2024-05-00"]);
    check(false, &["2024-13-01", "2024-00-01", "2024-300-01", "2024-005-01", "2024-05-001", "2024-+5-01"]);
    check(false, &["2024-5", "2024-5-", "2024-5-1-1", "202-05-01", "20245-05-01"]);
    // A time needs a zone after `T`, and has none after a space.
    check(true, &["2024-05-01T10:00:00Z", "2024-05-01t1:2:3Z", "2024-05-01T23:59:59Z"]);
    check(true, &["2024-05-01T10:00:00+02:00", "2024-5-1 1:2:3", "2024-5-1   1:2:3.5"]);
    check(false, &["2024-05-01T10:00:00", "2024-05-01T10:00:00z", "2024-05-01T10:00:00 Z"]);
    check(false, &["2024-05-01 10:00:00Z", "2024-05-01 10:00:00+02:00"]);
    check(false, &["2024-05-01T", "2024-05-01TZ", "2024-05-01T10:00", "2024-05-01T10:00Z"]);
    check(false, &["2024-05-01T24:00:00Z", "2024-05-01T10:60:00Z", "2024-05-01T10:00:60Z"]);
    check(false, &["2024-05-01T10:00:00:00Z", "2024-05-01T010:00:00Z"]);
    // Fractions have any number of digits.
    check(true, &["2024-05-01T10:00:00.123456Z", "2024-05-01T1:0:0,5Z", "2024-05-01T1:0:0.1234567890123Z"]);
    check(false, &["2024-05-01T10:00:00.Z", "2024-05-01T10:00:00.5xZ"]);
    // Offsets have up to 24 hours and up to 60 minutes, with two digits each.
    check(true, &["2024-05-01T10:00:00-24:60"]);
    check(false, &["2024-05-01T10:00:00+25:00", "2024-05-01T10:00:00+02:61"]);
    check(false, &["2024-05-01T10:00:00+2:00", "2024-05-01T10:00:00+002:0", "2024-05-01T10:00:00+2:000"]);
    check(false, &["2024-05-01T10:00:00+02.00", "2024-05-01T10:00:00*02:00", "2024-05-01T+02:00"]);
    check(false, &["2024-05-01T10:00:00+aa:00", "2024-05-01T10:00:00+02:aa", "2024-05-01Tä2:00"]);
}

#[test]
fn unprintable_character_is_escaped_as_by_go_yaml() {
    for (character, expected) in [
        ('\0', "\\0"),
        ('\x01', "\\x01"),
        ('\x07', "\\a"),
        ('\x08', "\\b"),
        ('\t', "\\t"),
        ('\x0b', "\\v"),
        ('\x0c', "\\f"),
        ('\r', "\\r"),
        ('\x1b', "\\e"),
        ('\x1f', "\\x1F"),
        ('\x7f', "\\x7F"),
        ('\u{84}', "\\x84"),
        ('\u{85}', "\\N"),
        ('\u{2028}', "\\L"),
        ('\u{2029}', "\\P"),
        ('\u{feff}', "\\uFEFF"),
        ('\u{ffff}', "\\uFFFF"),
        ('😀', "\\U0001F600"),
    ] {
        check_string(&format!("a{character}b"), &format!("\"a{expected}b\""));
    }
    for character in ['~', '\u{a0}', 'ÿ', '\u{2027}', '\u{202a}', '\u{d7ff}', '\u{e000}', '\u{fffd}'] {
        check_string(&format!("a{character}b"), &format!("a{character}b"));
    }
    check_string("\t\"\\", "\"\\t\\\"\\\\\"");
    // These are printable, but everything after a byte order mark is escaped.
    check_string("\u{feff}\u{a0}ÿ€ a", "\"\\uFEFF\\_\\xFF\\u20AC\\x20\\x61\"");
    check_string("a\u{2028}b\nc", "\"a\\Lb\\nc\"");
}

#[test]
fn yaml_line_is_folded_at_the_first_single_space_after_column_80() {
    // `k: ` and the text before the space take 80 columns, or 81.
    let (fits, long) = ("x".repeat(77), "x".repeat(78));
    check_string(&format!("{fits} y z"), &format!("{fits} y\n  z"));
    check_string(&format!("{long} y z"), &format!("{long}\n  y z"));
    check_string(&format!("{long}  y z"), &format!("{long}  y\n  z"));
    // The quote takes a column.
    let (fits, long) = ("x".repeat(76), "x".repeat(77));
    check_string(&format!("{fits} y z:"), &format!("'{fits} y\n  z:'"));
    check_string(&format!("{long} y z:"), &format!("'{long}\n  y z:'"));
    check_string(&format!("{long}  y 'z:"), &format!("'{long}  y\n  ''z:'"));
    check_string(&format!("{long} "), &format!("'{long} '"));
    check_string(&format!("{fits} y z\t"), &format!("\"{fits} y\n  z\\t\""));
    check_string(&format!("{long} y z\t"), &format!("\"{long}\n  y z\\t\""));
    check_string(&format!("{long}  y\t"), &format!("\"{long}\n  \\ y\\t\""));
    check_string(&format!("\t{long} "), &format!("\"\\t{long} \""));
    // Spaces at the beginning are not folded, and keys neither.
    let key = "k".repeat(90);
    check(&listwatch_json::json!({ &key: " a" }).to_string(), &format!("{key}: ' a'\n"));
    check(&listwatch_json::json!({ &key: " a\t" }).to_string(), &format!("{key}: \" a\\t\"\n"));
    for (member, expected) in [("a b", "a b"), ("a b:", "'a b:'"), ("a b\t", "\"a b\\t\"")] {
        let expected = expected.replace('a', &key);
        check(&listwatch_json::json!({ member.replace('a', &key): 1 }).to_string(), &format!("{expected}: 1\n"));
    }
}

#[test]
fn yaml_key_that_is_long_or_has_line_breaks_has_a_question_mark() {
    let (simple, long) = ("k".repeat(128), "k".repeat(129));
    for (json, expected) in [
        (listwatch_json::json!({ &simple: 1 }), format!("{simple}: 1\n")),
        (listwatch_json::json!({ &long: 1 }), format!("? {long}\n: 1\n")),
        (listwatch_json::json!({ "ä".repeat(65): 1 }), format!("? {}\n: 1\n", "ä".repeat(65))),
        (listwatch_json::json!({ "a\nb": 1 }), "? |-\n  a\n  b\n: 1\n".to_owned()),
        (listwatch_json::json!({ "a\rb": 1 }), "? \"a\\rb\"\n: 1\n".to_owned()),
        (listwatch_json::json!({ "\u{85}": 1 }), "? \"\\N\"\n: 1\n".to_owned()),
        // The value begins on the line of the colon.
        (listwatch_json::json!({ &long: { "b": 1, "c": [] } }), format!("? {long}\n: b: 1\n  c: []\n")),
        (listwatch_json::json!({ &long: [1, [2]] }), format!("? {long}\n: - 1\n  - - 2\n")),
        (listwatch_json::json!({ "a": { &long: "x\ny" } }), format!("a:\n  ? {long}\n  : |-\n    x\n    y\n")),
    ] {
        check(&json.to_string(), &expected);
    }
}

/// The keys of a document in the order of its text.
fn keys(members: &listwatch_json::Map) -> Vec<String> {
    let yaml = from_json(&serde_json::to_vec(members).unwrap()).unwrap();
    let printed: listwatch_json::Map = yaml_serde::from_slice(&yaml).unwrap();
    assert_eq!(&printed, members, "every member is printed once");
    printed.into_iter().map(|(key, _)| key.into()).collect()
}

#[test]
fn yaml_keys_have_the_order_of_go_yaml() {
    for (first, second) in [
        ("", "a"),
        ("a", "aa"),
        ("B", "a"),
        ("z", "ä"),
        ("_", "a"),
        ("1", "A"),
        ("-", "_"),
        ("a9", "a10"),
        ("a9b", "a10a"),
        ("a2", "a02"),
        ("a02", "a3"),
        ("a00", "a01"),
        // A zero that differs is part of the number before it, unless that number is zero too.
        ("a2-", "a20"),
        ("a19", "a101"),
        ("a15-", "a101"),
        ("a20-", "a200"),
        ("b0-", "b00"),
        // Letters follow digits, even inside of a number.
        ("a11", "a1a"),
        // Values beyond 63 bits wrap around.
        ("a9223372036854775808", "a1223372036854775807"),
    ] {
        for members in [[first, second], [second, first]] {
            let members = members.into_iter().map(|key| (key.to_owned(), Value::Null)).collect();
            assert_eq!(keys(&members), [first, second]);
        }
    }
}

#[test]
fn yaml_keys_without_a_total_order_are_printed() {
    // Such keys have cycles: `11 < 1a`, `1a < 9`, `9 < 11`.
    let hashes = (0..500_u32).map(|n| format!("{:08x}", n.wrapping_mul(0x9e37_79b9)));
    assert_eq!(keys(&hashes.map(|key| (key, Value::Null)).collect()).len(), 500);
}

#[test]
fn document_whose_indents_exceed_the_bound_is_printed_as_json() {
    const LEVELS: usize = 100;
    let nested = |leaf: String| format!("{}{leaf}{}", r#"{"a":"#.repeat(LEVELS), "}".repeat(LEVELS));
    let of_length = |leaf: &str, count: usize| match leaf {
        "numbers" => nested(format!("[{}0]", "0,".repeat(count))),
        "lines" => nested(format!("\"{}\"", r"x\n".repeat(count))),
        _ => nested(format!("\"{}x\"", "x ".repeat(count))),
    };
    for leaf in ["numbers", "lines", "words"] {
        // Each number, line or word takes some 200 bytes of indent.
        for (count, is_json) in [(1_000, false), (4_000, false), (8_000, true), (200_000, true)] {
            let json = of_length(leaf, count);
            let mut printer = Printer::for_json(json.as_bytes());
            printer.root(&serde_json::from_str(&json).expect("JSON"));
            let (bytes, max) = (printer.out.len(), printer.bytes_max + json.len() + LEVELS * INDENT);
            assert!(bytes <= max, "{count} {leaf}: the printer holds {bytes} bytes of at most {max}");

            let document = from_json(json.as_bytes()).expect("a document");
            assert_eq!(document.starts_with(b"{"), is_json, "{count} {leaf}");
            let item = item_from_json(json.as_bytes(), &["b"]).expect("an item");
            assert_eq!(item.starts_with(b"- {"), is_json, "{count} {leaf}");
            if is_json {
                assert_eq!(document, format!("{json}\n"), "{count} {leaf}");
                assert_eq!(item, format!("- {json}\n"), "{count} {leaf}");
            }
        }
    }
}

#[test]
fn yaml_list_item_has_no_indent() {
    assert_eq!(
        item_from_json(br#"{"b":[1],"kind":"x","a":{"c":2}}"#, &["kind"]).unwrap(),
        "- a:\n    c: 2\n  b:\n  - 1\n"
    );
    assert_eq!(item_from_json(b"{}", &[]).unwrap(), "- {}\n");
    assert!(from_json(b"{").is_err());
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "[a-z0-9\"'\\\\{}, :#\n\t.-]{0,9}".prop_map(Into::into),
        "([a-z]{1,9}[ ]{1,2}){0,30}".prop_map(Into::into),
        "\\PC{0,5}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec(("[a-z0-9\": \n]{0,3}|[a-z]{120,140}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn written_yaml_parses_to_the_same_value(value in json()) {
        let yaml = from_json(&serde_json::to_vec(&value).unwrap()).unwrap();
        let back: Value = yaml_serde::from_slice(&yaml)
            .map_err(|error| TestCaseError::fail(format!("{error}: {}", String::from_utf8_lossy(&yaml))))?;
        prop_assert_eq!(back, value, "{}", String::from_utf8_lossy(&yaml));
    }
}
