//! Generates random objects of every kind, as Go would print them, from a tape of bytes. A shorter
//! tape, or one with more zeros, gives a smaller object, so proptest shrinks them well.

use listwatch_k8s_types::{Field, Id, Omit, Shape, Type};

/// A finite sequence of choices: an empty tape always chooses 0.
pub(crate) struct Tape<'a> {
    bytes: &'a [u8],
}

impl<'a> Tape<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Tape { bytes }
    }

    /// One of `count` choices; 0 is the smallest.
    pub(crate) fn choose(&mut self, count: usize) -> usize {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        usize::from(*first) % count
    }

    fn pick<'b, T: ?Sized>(&mut self, of: &[&'b T]) -> &'b T {
        of[self.choose(of.len())]
    }
}

/// Maximum nesting of optional messages.
const DEPTH: usize = 8;

const TEXTS: [&str; 7] = [
    r#""""#,
    r#""a""#,
    r#""web-1""#,
    r#""ä€😀""#,
    r#""\u003ca\u003e \u0026 \"q\" \\""#,
    r#""\n\t\u0001""#,
    r#""\u2028""#,
];
const NUMBERS: [&str; 6] = ["0", "1", "-1", "300", "2147483647", "-2147483648"];
const LONG_NUMBERS: [&str; 5] = ["0", "7", "-1", "9223372036854775807", "-9223372036854775808"];
const DOUBLES: [&str; 5] = ["0", "1", "-0.5", "1e+21", "1e-7"];
const BASE64: [&str; 3] = [r#""""#, r#""AA==""#, r#""/////w==""#];
const TIMES: [&str; 6] = [
    r#""1970-01-01T00:00:00Z""#,
    r#""2024-06-01T12:04:05Z""#,
    r#""9999-12-31T23:59:59Z""#,
    r#""0000-06-01T00:00:00Z""#,
    r#""10000-01-01T00:00:59Z""#,
    r#""-0001-12-31T23:59:00Z""#,
];
const MICRO_TIMES: [&str; 3] =
    [r#""1970-01-01T00:00:00.000000Z""#, r#""2024-06-01T12:04:05.000007Z""#, r#""10000-01-01T00:00:59.000000Z""#];
const QUANTITIES: [&str; 4] = [r#""0""#, r#""100m""#, r#""1536Mi""#, r#""-5""#];
const RAW: [&str; 4] = ["{}", r#"{"a":[1,2.5,null,"\u003c"]}"#, "17", r#""text""#];

/// The JSON of a random object of a kind.
pub(crate) fn object(api_version: &str, kind: &str, id: Id, tape: &mut Tape<'_>) -> String {
    let mut members = vec![format!("\"kind\":\"{kind}\""), format!("\"apiVersion\":\"{api_version}\"")];
    push_members(id, tape, 0, &mut members);
    format!("{{{}}}", members.join(","))
}

fn push_members(id: Id, tape: &mut Tape<'_>, depth: usize, members: &mut Vec<String>) {
    for field in id.message().fields() {
        if let (Shape::Inline, Type::Message(inner)) = (field.shape(), field.of()) {
            push_members(inner, tape, depth, members);
        } else if let Some(value) = member(field, tape, depth) {
            members.push(format!("\"{}\":{value}", field.name()));
        }
    }
}

/// The value of a member, or `None` if Go omits it.
fn member(field: &Field, tape: &mut Tape<'_>, depth: usize) -> Option<String> {
    let nothing = || (field.omit() == Omit::Never).then(|| "null".to_owned());
    let filled = |tape: &mut Tape<'_>| depth < DEPTH && tape.choose(3) > 0;
    match field.shape() {
        Shape::One => {
            let value = match field.of() {
                Type::Strings if !filled(tape) => return nothing(),
                of @ (Type::Time | Type::MicroTime | Type::Raw) if !filled(tape) => {
                    return (of == Type::Raw || field.omit() != Omit::Zero).then(|| "null".to_owned());
                }
                of => value(of, tape, depth, false),
            };
            let scalar = matches!(
                field.of(),
                Type::String | Type::Bytes | Type::Bool | Type::Int32 | Type::Int64 | Type::Double
            );
            let zero = scalar && matches!(value.as_str(), "\"\"" | "false" | "0");
            (!zero || field.omit() == Omit::Never).then_some(value)
        }
        _ if !filled(tape) => nothing(),
        Shape::Pointer | Shape::Inline => Some(value(field.of(), tape, depth + 1, false)),
        Shape::Repeated => {
            let count = 1 + tape.choose(2);
            let elements: Vec<String> = (0..count).map(|_| value(field.of(), tape, depth + 1, true)).collect();
            Some(format!("[{}]", elements.join(",")))
        }
        Shape::Map => {
            // Sorted, as Go prints them.
            let keys = &["", "a", "b/c", "ä"][tape.choose(3)..];
            let entries: Vec<String> =
                keys.iter().map(|key| format!("\"{key}\":{}", value(field.of(), tape, depth + 1, true))).collect();
            Some(format!("{{{}}}", entries.join(",")))
        }
    }
}

/// A value; `null` only as an element, because a `null` pointer counts as absent.
fn value(of: Type, tape: &mut Tape<'_>, depth: usize, element: bool) -> String {
    let strings = |tape: &mut Tape<'_>| format!("[{},{}]", tape.pick(&TEXTS), tape.pick(&TEXTS));
    let null = element && tape.choose(4) == 1;
    match of {
        Type::String => tape.pick(&TEXTS).to_owned(),
        Type::Bool => tape.pick(&["false", "true"]).to_owned(),
        Type::Int32 => tape.pick(&NUMBERS).to_owned(),
        Type::Int64 => tape.pick(&LONG_NUMBERS).to_owned(),
        Type::Double => tape.pick(&DOUBLES).to_owned(),
        Type::Bytes => tape.pick(&BASE64).to_owned(),
        Type::Time | Type::MicroTime | Type::Raw if null => "null".to_owned(),
        Type::Time => tape.pick(&TIMES).to_owned(),
        Type::MicroTime => tape.pick(&MICRO_TIMES).to_owned(),
        Type::Quantity => tape.pick(&QUANTITIES).to_owned(),
        Type::IntOrString if tape.choose(2) == 1 => tape.pick(&TEXTS).to_owned(),
        Type::IntOrString => tape.pick(&NUMBERS).to_owned(),
        Type::Raw => tape.pick(&RAW).to_owned(),
        Type::Strings if null => "[]".to_owned(),
        Type::Strings => strings(tape),
        Type::Message(id) => message(id, tape, depth),
        Type::PropsOrBool(id) => match tape.choose(3) {
            0 => "false".to_owned(),
            1 => "true".to_owned(),
            _ => message(id, tape, depth),
        },
        Type::PropsOrArray(_) | Type::PropsOrStrings(_) if null => "null".to_owned(),
        Type::PropsOrArray(id) if tape.choose(2) == 1 => format!("[{}]", message(id, tape, depth)),
        Type::PropsOrStrings(_) if tape.choose(2) == 1 => strings(tape),
        Type::PropsOrArray(id) | Type::PropsOrStrings(id) => message(id, tape, depth),
    }
}

fn message(id: Id, tape: &mut Tape<'_>, depth: usize) -> String {
    let mut members = Vec::new();
    push_members(id, tape, depth + 1, &mut members);
    format!("{{{}}}", members.join(","))
}
