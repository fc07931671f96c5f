//! The JSON paths of `additionalPrinterColumns`: [`JsonPath`].
//!
//! ```text
//!  .spec.replicas          members; a dot in a name is escaped: .metadata.labels.app\.kubernetes\.io/name
//!  .spec['replicas']       the same; a dot separates names here, too
//!  .items[0]  .items[-1]   elements, from the end when negative
//!  .items[1:3]  .items[::2]  slices: start, end, step
//!  .items[0,2]  .spec['a','b']   unions
//!  .items[*]  .spec.*      all elements; all values of an object
//!  ..image                 members of the value and of all values below it
//!  .status.conditions[?(@.type=="Ready")].status     elements that pass a filter: == != < <= > >=, or presence
//! ```
//!
//! A column shows the first value. It is empty if a step fails, for example an index on an object or a comparison of
//! different types, also if that happens behind the first value.
//!
//! Rules: client-go `util/jsonpath/parser.go` and `jsonpath.go`, Kubernetes 1.36. Two constructs are not supported,
//! because no column needs them: a second `{…}` in a path, and `range`.

use std::cmp::Ordering;

use listwatch_printers::Json;

/// The number of bytes that one cell reads per byte of its object, in addition to [`READS_BASE`]. Above it the cell is
/// empty: `..` reads a deeply nested document once per level.
const READS_PER_BYTE_MAX: usize = 64;

/// The number of bytes that a cell of any object may read. Without it, a long path would fail for a small object.
const READS_BASE: usize = 64 << 10;

/// The number of bytes that a step on one value counts as, in addition to those it reads. A step that reads nothing, for
/// example a literal, takes time, too.
const STEP_BYTES: usize = 16;

/// The number of values between two steps of a path. Above it the cell is empty.
const VALUES_MAX: usize = 100_000;

/// The number of steps of a path. A definition's columns end before a longer path.
const STEPS_MAX: usize = 1_000;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Member(String),
    /// All values of an object or list.
    All,
    /// The value and all values below it that have values themselves.
    Descend,
    Slice(Slice),
    Union(Vec<Vec<Step>>),
    Filter(Box<Filter>),
    /// A value in JSON.
    Literal(Vec<u8>),
    /// A word, which fails for each object.
    Word,
}

/// `[start:end:step]`. An index is a slice without an end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Slice {
    start: Option<i64>,
    end: Option<i64>,
    /// Whether there is a colon before the end.
    is_range: bool,
    step: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Filter {
    Exists(Vec<Step>),
    /// The operator is `None` if it is unknown; then the filter fails.
    Compare(Vec<Step>, Option<Operator>, Vec<Step>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The reason why a path has no result.
#[derive(Debug)]
enum Failure {
    /// A step does not apply to a value.
    Step,
    /// A limit of this module.
    Limit,
}

impl JsonPath {
    /// Parses a path; `None` if upstream rejects it, or if it has more than [`STEPS_MAX`] steps.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut steps_left = STEPS_MAX;
        Parser { text, at: 0, steps: Vec::new(), steps_left: &mut steps_left }.action().map(JsonPath)
    }

    /// Returns the first value at the path.
    pub(super) fn first<'a>(&'a self, root: Json<'a>) -> Option<Json<'a>> {
        self.walk(root, &mut Walk::new(root)).ok()?
    }

    fn walk<'a>(&'a self, root: Json<'a>, walk: &mut Walk) -> Result<Option<Json<'a>>, Failure> {
        let mut steps = self.0.as_slice();
        let mut value = root;
        // Most paths have members only, and need no list of values.
        while let [Step::Member(name), rest @ ..] = steps {
            walk.read(value)?;
            value = value.get(name);
            steps = rest;
            if value.raw().is_empty() {
                break;
            }
        }
        let values: Vec<_> = match (value.raw().is_empty(), steps.is_empty()) {
            (true, true) => return Ok(None),
            (false, true) => return Ok(Some(value)),
            (is_absent, false) => Some(value).filter(|_| !is_absent).into_iter().collect(),
        };
        Ok(walk.steps(steps, values)?.into_iter().next())
    }
}

/// One evaluation of a path.
struct Walk {
    bytes_left: usize,
}

type Values<'a> = Vec<Json<'a>>;

/// Appends values within [`VALUES_MAX`]. A step must not collect its values without this check: a union multiplies
/// them.
fn add<'a>(output: &mut Values<'a>, values: impl IntoIterator<Item = Json<'a>>) -> Result<(), Failure> {
    for value in values {
        if output.len() >= VALUES_MAX {
            return Err(Failure::Limit);
        }
        output.push(value);
    }
    Ok(())
}

impl Walk {
    fn new(root: Json<'_>) -> Self {
        Walk { bytes_left: root.raw().len().saturating_mul(READS_PER_BYTE_MAX).saturating_add(READS_BASE) }
    }

    /// Counts bytes that a step reads.
    fn charge(&mut self, bytes: usize) -> Result<(), Failure> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(Failure::Limit)?;
        Ok(())
    }

    /// Counts the bytes of a value that a step reads.
    fn read(&mut self, value: Json<'_>) -> Result<(), Failure> {
        self.charge(value.raw().len().max(1))
    }

    fn steps<'a>(&mut self, steps: &'a [Step], input: Values<'a>) -> Result<Values<'a>, Failure> {
        let mut values = input;
        for step in steps {
            self.charge(values.len().max(1).saturating_mul(STEP_BYTES))?;
            values = self.step(step, values)?;
        }
        Ok(values)
    }

    fn step<'a>(&mut self, step: &'a Step, input: Values<'a>) -> Result<Values<'a>, Failure> {
        let mut output = Vec::new();
        match step {
            Step::Member(name) => {
                for value in input {
                    self.read(value)?;
                    add(&mut output, Some(value.get(name)).filter(|member| !member.raw().is_empty()))?;
                }
            }
            Step::All => {
                for value in input {
                    add(&mut output, self.children(value)?)?;
                }
            }
            Step::Descend => self.descend(input, &mut output)?,
            Step::Slice(slice) => {
                for value in input.into_iter().filter(|value| value.exists()) {
                    if value.raw().first() != Some(&b'[') {
                        return Err(Failure::Step);
                    }
                    self.read(value)?;
                    let items = value.items();
                    let Some((selected, step)) = slice.of(&items)? else {
                        // Upstream returns at the first empty range.
                        return Ok(output);
                    };
                    add(&mut output, selected.iter().step_by(step).copied())?;
                }
            }
            Step::Union(members) => {
                for steps in members {
                    add(&mut output, self.steps(steps, input.clone())?)?;
                }
            }
            Step::Filter(filter) => {
                for value in input {
                    if value.raw().first() != Some(&b'[') {
                        return Err(Failure::Step);
                    }
                    self.read(value)?;
                    for item in value.items() {
                        if self.passes(filter, item)? {
                            add(&mut output, [item])?;
                        }
                    }
                }
            }
            Step::Literal(literal) => {
                // Upstream has one number per value, and one text.
                let count = if literal.first() == Some(&b'"') { 1 } else { input.len() };
                output.resize(count, Json::new(literal));
            }
            Step::Word => return Err(Failure::Step),
        }
        Ok(output)
    }

    fn children<'a>(&mut self, value: Json<'a>) -> Result<Values<'a>, Failure> {
        self.read(value)?;
        Ok(match value.raw().first() {
            Some(b'[') => value.items(),
            Some(b'{') => value.entries().into_iter().map(|(_, member)| member).collect(),
            _ => Vec::new(),
        })
    }

    fn descend<'a>(&mut self, input: Values<'a>, output: &mut Values<'a>) -> Result<(), Failure> {
        let mut pending = input;
        pending.reverse();
        while let Some(value) = pending.pop() {
            let children = self.children(value)?;
            if !children.is_empty() {
                add(output, [value])?;
                add(&mut pending, children.into_iter().rev())?;
            }
        }
        Ok(())
    }

    fn passes(&mut self, filter: &Filter, item: Json<'_>) -> Result<bool, Failure> {
        match filter {
            Filter::Exists(path) => match self.steps(path, vec![item]) {
                Ok(found) => Ok(!found.is_empty()),
                // Upstream returns the values on which a step failed.
                Err(Failure::Step) => Ok(true),
                Err(Failure::Limit) => Err(Failure::Limit),
            },
            Filter::Compare(left, operator, right) => {
                let left = self.steps(left, vec![item])?;
                let left = match left.as_slice() {
                    [] => return Ok(false),
                    [left] => *left,
                    _ => return Err(Failure::Step),
                };
                let right = self.steps(right, vec![item])?;
                let right = match right.as_slice() {
                    [] => return Ok(false),
                    [right] => *right,
                    _ => return Err(Failure::Step),
                };
                operator.and_then(|operator| compare(left, operator, right)).ok_or(Failure::Step)
            }
        }
    }
}

impl Slice {
    /// The elements in the range, and the step. `None` if the range is empty.
    #[allow(clippy::type_complexity)] // read at one place
    fn of<'v, 'a>(&self, items: &'v [Json<'a>]) -> Result<Option<(&'v [Json<'a>], usize)>, Failure> {
        let len = i64::try_from(items.len()).map_err(|_| Failure::Limit)?;
        let from_end = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
        let start = from_end(self.start.unwrap_or(0));
        let end = match self.end {
            Some(end) => from_end(end),
            None if self.is_range => len,
            // An index is the range up to the next element; -1 is the last element.
            None => match self.start.unwrap_or(0).saturating_add(1) {
                0 => len,
                end => from_end(end),
            },
        };
        if start == end {
            return Ok(None);
        }
        let bound = |index: i64| usize::try_from(index).map_err(|_| Failure::Step);
        let selected = items.get(bound(start)?..bound(end)?).filter(|selected| !selected.is_empty());
        let step = usize::try_from(self.step.unwrap_or(1)).ok().filter(|step| *step > 0);
        selected.zip(step).map(Some).ok_or(Failure::Step)
    }
}

/// Compares two values; `None` if they cannot be compared (client-go `third_party/forked/golang/template/funcs.go`).
fn compare(left: Json<'_>, operator: Operator, right: Json<'_>) -> Option<bool> {
    if let (Some(left), Some(right)) = (left.bool(), right.bool()) {
        return match operator {
            Operator::Equal => Some(left == right),
            Operator::NotEqual => Some(left != right),
            _ => None,
        };
    }
    let integer = |value: Json<'_>| std::str::from_utf8(value.raw()).ok().and_then(|text| text.parse::<i64>().ok());
    let order = match (left.text(), right.text()) {
        (Some(left), Some(right)) => left.cmp(&right),
        (None, None) => match (integer(left), integer(right)) {
            (Some(left), Some(right)) => left.cmp(&right),
            (None, None) => left.float()?.partial_cmp(&right.float()?)?,
            _ => return None,
        },
        _ => return None,
    };
    Some(match operator {
        Operator::Equal => order == Ordering::Equal,
        Operator::NotEqual => order != Ordering::Equal,
        Operator::Less => order == Ordering::Less,
        Operator::LessOrEqual => order != Ordering::Greater,
        Operator::Greater => order == Ordering::Greater,
        Operator::GreaterOrEqual => order != Ordering::Less,
    })
}

/// Parses the text between two braces.
struct Parser<'t, 's> {
    text: &'t str,
    at: usize,
    steps: Vec<Step>,
    /// The remaining number of steps of the whole path.
    steps_left: &'s mut usize,
}

impl<'t> Parser<'t, '_> {
    /// Parses a part of the path on its own, as upstream does.
    fn nested(&mut self, text: &str) -> Option<Vec<Step>> {
        Parser { text, at: 0, steps: Vec::new(), steps_left: self.steps_left }.action()
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn push(&mut self, step: Step) -> Option<()> {
        *self.steps_left = self.steps_left.checked_sub(1)?;
        self.steps.push(step);
        Some(())
    }

    fn action(mut self) -> Option<Vec<Step>> {
        while let Some(c) = self.rest().chars().next() {
            if self.rest().starts_with("[?(") {
                self.filter()?;
                continue;
            }
            if self.rest().starts_with("..") {
                if self.steps.last() == Some(&Step::Descend) {
                    return None;
                }
                self.at += 2;
                self.push(Step::Descend)?;
                if self.rest().starts_with(is_alphanumeric) {
                    self.member()?;
                }
                continue;
            }
            match c {
                ' ' | '@' | '$' => self.at += 1,
                '[' => self.bracket()?,
                '"' | '\'' => self.quote(c)?,
                '.' => {
                    self.at += 1;
                    self.member()?;
                }
                '+' | '-' => self.number()?,
                c if c.is_numeric() => self.number()?,
                c if is_alphanumeric(c) => {
                    let word = self.until_terminator(false)?;
                    self.push(match word {
                        "true" | "false" => Step::Literal(word.as_bytes().to_vec()),
                        _ => Step::Word,
                    })?;
                }
                _ => return None,
            }
        }
        Some(self.steps)
    }

    /// Returns the text up to the end of a name. With `escapes` a backslash hides the next character.
    fn until_terminator(&mut self, escapes: bool) -> Option<&'t str> {
        let begin = self.at;
        while let Some(c) = self.rest().chars().next() {
            if matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}') {
                break;
            }
            self.next();
            if escapes && c == '\\' {
                // The brace behind the path would be escaped, and the path would not end.
                self.next()?;
            }
        }
        self.text.get(begin..self.at)
    }

    fn member(&mut self) -> Option<()> {
        let name = self.until_terminator(true)?;
        self.push(match name {
            "*" => Step::All,
            name => Step::Member(name.replace('\\', "")),
        })
    }

    fn number(&mut self) -> Option<()> {
        let rest = self.rest();
        let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        let end = rest.len() - digits.trim_start_matches(|c: char| c == '.' || c.is_numeric()).len();
        let number = rest.get(..end)?;
        self.at += end;
        let shown = match number.parse::<i64>() {
            Ok(number) => number.to_string(),
            // The debug format always differs from that of an integer.
            Err(_) => format!("{:?}", number.parse::<f64>().ok()?),
        };
        self.push(Step::Literal(shown.into_bytes()))
    }

    /// Parses `[…]`: a slice, an index, a name or a union.
    fn bracket(&mut self) -> Option<()> {
        let (inside, rest) = self.rest().strip_prefix('[')?.split_once(']')?;
        if inside.contains('\n') {
            return None;
        }
        self.at = self.text.len() - rest.len();
        if inside.contains(',') {
            let members = inside.split(',').map(|member| self.nested(&format!("[{}]", member.trim_matches(' '))));
            let members = members.collect::<Option<Vec<_>>>()?;
            return self.push(Step::Union(members));
        }
        let name = inside.strip_prefix('\'').and_then(|inside| inside.strip_suffix('\''));
        if let Some(name) = name.filter(|name| !name.contains('\'')) {
            let steps = self.nested(&format!(".{name}"))?;
            self.steps.extend(steps);
            return Some(());
        }
        let inside = if inside == "*" { ":" } else { inside };
        let mut parts = inside.split(':');
        let mut part = || match parts.next() {
            None => Some((false, None)),
            Some("") => Some((true, None)),
            Some(number) => {
                let digits = number.strip_prefix('-').unwrap_or(number);
                let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                let number = number.parse().ok().filter(|_| is_number)?;
                Some((true, Some(number)))
            }
        };
        let ((_, start), (is_range, end), (_, step)) = (part()?, part()?, part()?);
        parts.next().is_none().then_some(())?;
        self.push(Step::Slice(Slice { start, end, is_range, step }))
    }

    /// Parses a string (`UnquoteExtend`).
    fn quote(&mut self, quote: char) -> Option<()> {
        let begin = self.at + 1;
        self.next();
        loop {
            match self.next()? {
                '\n' => return None,
                c if c == quote && !self.text.get(..self.at - 1)?.ends_with('\\') => break,
                _ => {}
            }
        }
        let text = unquote(self.text.get(begin..self.at - 1)?, quote)?;
        let json = serde_json::to_vec(&text).ok()?;
        self.push(Step::Literal(json))
    }

    /// Parses `[?(…)]`.
    fn filter(&mut self) -> Option<()> {
        self.at += "[?(".len();
        let begin = self.at;
        // A parenthesis between the first quote and the next one of its kind belongs to a string.
        let (mut quote, mut is_closed) = (None, false);
        loop {
            let escaped = self.text.get(..self.at)?.ends_with('\\');
            match self.next()? {
                '\n' => return None,
                c @ ('"' | '\'') => match quote {
                    None => quote = Some(c),
                    Some(opening) => is_closed |= opening == c && !escaped,
                },
                ')' if quote.is_some() == is_closed => break,
                _ => {}
            }
        }
        let inside = self.text.get(begin..self.at - 1)?;
        if self.next() != Some(']') {
            return None;
        }
        let is_operator = |c: char| matches!(c, '!' | '<' | '>' | '=');
        let split = inside.find(is_operator).filter(|at| *at > 0).and_then(|at| {
            let (left, rest) = inside.split_at_checked(at)?;
            let right = rest.trim_start_matches(is_operator);
            // The last character of the operator is the right side if nothing else is.
            let right = if right.is_empty() { rest.get(rest.len() - 1..)? } else { right };
            let operator = rest.strip_suffix(right).filter(|operator| !operator.is_empty())?;
            Some((left, operator, right))
        });
        let filter = match split {
            None => Filter::Exists(self.nested(inside)?),
            Some((left, operator, right)) => {
                let operator = match operator {
                    "==" => Some(Operator::Equal),
                    "!=" => Some(Operator::NotEqual),
                    "<" => Some(Operator::Less),
                    "<=" => Some(Operator::LessOrEqual),
                    ">" => Some(Operator::Greater),
                    ">=" => Some(Operator::GreaterOrEqual),
                    _ => None,
                };
                Filter::Compare(self.nested(left)?, operator, self.nested(right)?)
            }
        };
        self.push(Step::Filter(Box::new(filter)))
    }
}

fn is_alphanumeric(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Resolves the escapes of a string (Go's `strconv.UnquoteChar`).
fn unquote(text: &str, quote: char) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let hexadecimal = |digits: usize, chars: &mut std::str::Chars<'_>| {
            (0..digits).try_fold(0u32, |number, _| {
                number.checked_mul(16)?.checked_add(chars.next().and_then(|c| c.to_digit(16))?)
            })
        };
        out.push(match chars.next()? {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '\\' => '\\',
            c if c == quote => c,
            'x' => char::from_u32(hexadecimal(2, &mut chars)?)?,
            'u' => char::from_u32(hexadecimal(4, &mut chars)?)?,
            'U' => char::from_u32(hexadecimal(8, &mut chars)?)?,
            _ => return None,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OBJECT: &[u8] = br#"{
        "metadata": {"labels": {"app.kubernetes.io/name": "shop", "plain": "p"}},
        "spec": {"replicas": 3, "items": [{"n": 1}, {"n": 2, "ok": true}, {"n": 3}], "empty": [], "a": "x", "b": "y"},
        "status": {"conditions": [
            {"type": "Synced", "status": "False"},
            {"type": "Ready", "status": "True", "reason": null}
        ]}
    }"#;

    /// Checks the first value; `None` is an empty cell.
    fn check(path: &str, expected: Option<&str>) {
        let parsed = JsonPath::parse(path).unwrap_or_else(|| panic!("{path} parses"));
        let found = parsed.first(Json::new(OBJECT)).map(|value| std::str::from_utf8(value.raw()).unwrap());
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn json_path_returns_the_first_value_of_upstream() {
        for (path, expected) in [
            (".spec.replicas", Some("3")),
            ("$.spec.replicas", Some("3")),
            ("['spec']['replicas']", Some("3")),
            (".spec['replicas']", Some("3")),
            (r".metadata.labels.app\.kubernetes\.io/name", Some("\"shop\"")),
            (r".metadata.labels['app\.kubernetes\.io/name']", Some("\"shop\"")),
            (".metadata.labels['app.kubernetes.io/name']", None),
            (".metadata.labels.*", Some("\"shop\"")),
            (".metadata.labels[*]", None),
            (".", None),
            (".[0]", None),
            (".nothing.here", None),
            (".spec.replicas.deeper", None),
            // Indexes and slices.
            (".spec.items[1].n", Some("2")),
            (".spec.items[-1].n", Some("3")),
            (".spec.items[-3].n", Some("1")),
            (".spec.items[].n", Some("1")),
            (".spec.items[9].n", None),
            (".spec.items[-9].n", None),
            (".spec.items[*].ok", Some("true")),
            (".spec.items[1:2].n", Some("2")),
            (".spec.items[1:].n", Some("2")),
            (".spec.items[:2].n", Some("1")),
            (".spec.items[-2:].n", Some("2")),
            (".spec.items[-2:-1].n", Some("2")),
            (".spec.items[::2].n", Some("1")),
            (".spec.items[2:1].n", None),
            (".spec.items[1:1].n", None),
            (".spec.items[1:9].n", None),
            (".spec.items[0:2:0].n", None),
            (".spec.items[0:2:-1].n", None),
            (".spec.empty[*]", None),
            (".spec.empty", Some("[]")),
            (".spec[0]", None),
            // Unions.
            (".spec['b','a']", Some("\"y\"")),
            (".spec['none', 'a']", Some("\"x\"")),
            (".spec.items[2,0].n", Some("3")),
            (".spec.items[0,9].n", None),
            // Recursive descent.
            ("..replicas", Some("3")),
            (".spec..n", Some("1")),
            ("..items[-1].n", Some("3")),
            ("..conditions[?(@.type=='Ready')].status", Some("\"True\"")),
            ("..['n']", Some("1")),
            ("..none", None),
            ("..[0]", None),
            // Filters.
            (r#".status.conditions[?(@.type=="Ready")].status"#, Some("\"True\"")),
            (r#".status.conditions[?(@.type == 'Ready')].status"#, Some("\"True\"")),
            (r#".status.conditions[?(@.type!="Ready")].status"#, Some("\"False\"")),
            (r#".status.conditions[?(@.type=="Gone")].status"#, None),
            (r#".status.conditions[?(@.type=="a)b")].status"#, None),
            (r#".status.conditions[?(@.type=="\x52eady")].status"#, Some("\"True\"")),
            (r#".status.conditions[?(@.type=="Ready")].reason"#, Some("null")),
            (".spec.items[?(@.n>1)].n", Some("2")),
            (".spec.items[?(@.n >= 3)].n", Some("3")),
            (".spec.items[?(@.n >= 3.0)].n", None),
            (".spec.items[?(@.ok)].n", Some("2")),
            (".spec.items[?(@.n[0])].n", Some("1")),
            (".spec.items[?(@.ok==true)].n", Some("2")),
            (".spec.items[?(@.ok>true)].n", None),
            (".spec.items[?(@.n==\"1\")].n", None),
            (".spec.items[?(@.n===1)].n", None),
            (".spec[?(@.n)]", None),
            (".spec.replicas word", None),
            (".spec.a \"text\"", Some("\"text\"")),
            (".none \"text\"", Some("\"text\"")),
            (".none 5", None),
            ("...replicas", Some("3")),
        ] {
            check(path, expected);
        }
    }

    #[test]
    fn json_path_that_upstream_rejects_is_rejected() {
        for path in [
            "{.spec}",
            "....a",
            "..*",
            ".a[",
            ".a['b",
            ".a[\"b\"]",
            ".a[x]",
            ".a[1:2:3:4]",
            ".a[1.5]",
            ".a[--1]",
            ".a[?(@.b]",
            ".a[?(@.b)",
            ".a[?(@.b==\"c)]",
            ".a[?(*)]",
            ".a ==",
            ".a (",
            ".a \"b",
            r".a\",
            ".a['b',x]",
        ] {
            assert_eq!(JsonPath::parse(path), None, "{path}");
        }
        assert!(JsonPath::parse(&".a".repeat(STEPS_MAX)).is_some());
        assert_eq!(JsonPath::parse(&".a".repeat(STEPS_MAX + 1)), None, "a path has a limit");
        let union = format!(".a[{}0]", "0,".repeat(STEPS_MAX));
        assert_eq!(JsonPath::parse(&union), None, "the members of a union count");
    }

    #[test]
    fn hostile_document_ends_a_path_at_its_limits() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(50_000), "}".repeat(50_000));
        let path = JsonPath::parse("..b").unwrap();
        assert!(path.first(Json::new(deep.as_bytes())).is_none());
        let wide = format!("[{}1]", "1,".repeat(VALUES_MAX));
        let path = JsonPath::parse("[*]").unwrap();
        assert!(path.first(Json::new(wide.as_bytes())).is_none(), "too many values");
        let nested = format!("{}1{}", "[".repeat(60), "]".repeat(60));
        let path = JsonPath::parse(&"[0,0]".repeat(60)).unwrap();
        assert!(path.first(Json::new(nested.as_bytes())).is_none(), "unions multiply values");
    }

    #[test]
    fn step_that_multiplies_values_ends_at_the_limit_before_it_collects_them() {
        let ones = vec!["1"; VALUES_MAX * 3 / 5].join(",");
        for (path, object) in [
            (format!(".a[{}0][*]", "0,".repeat(29)), format!(r#"{{"a":[[{ones}]]}}"#)),
            (format!(".a[{}0][*]", "0,".repeat(59)), format!(r#"{{"a":[[{ones}]]}}"#)),
            (format!(".a[{}0][?(@==1)]", "0,".repeat(29)), format!(r#"{{"a":[[{ones}]]}}"#)),
            (format!(".a[{}0].*", "0,".repeat(29)), format!(r#"{{"a":[[{ones}]]}}"#)),
            (format!(".a[{}*]", "*,".repeat(479)), format!(r#"{{"a":[{ones}]}}"#)),
        ] {
            let object = Json::new(object.as_bytes());
            let parsed = JsonPath::parse(&path).unwrap();
            let mut walk = Walk::new(object);
            assert!(matches!(parsed.walk(object, &mut walk), Err(Failure::Limit)), "{path}");
            let read = (Walk::new(object).bytes_left - walk.bytes_left) / object.raw().len();
            let unions = path.matches("0,").count();
            assert!(read < unions + 40, "{path}: further values are not read ({read})");
        }
    }

    #[test]
    fn steps_that_read_nothing_count_against_the_budget_of_a_cell() {
        let list = format!("[{}1]", "1,".repeat(VALUES_MAX - 1));
        let list = Json::new(list.as_bytes());
        for filter in ["1 ".repeat(900) + "== 1", "@ == ".to_owned() + &"1 ".repeat(900), "'a' ".repeat(300) + "== 'a'"]
        {
            let path = JsonPath::parse(&format!("[?({filter})]")).unwrap();
            let mut walk = Walk::new(list);
            assert!(matches!(path.walk(list, &mut walk), Err(Failure::Limit)), "{filter}");
        }
        let short = JsonPath::parse("[?(@ == 1)]").unwrap();
        assert_eq!(short.first(list).map(|value| value.raw()), Some(&b"1"[..]), "each item may be compared");
        let long = JsonPath::parse(&format!("[?({}== 1)]", "1 ".repeat(900))).unwrap();
        assert_eq!(
            long.first(Json::new(b"[1]")).map(|value| value.raw()),
            Some(&b"1"[..]),
            "a small object has a floor"
        );
    }

    #[test]
    fn members_of_a_deep_document_count_against_the_budget_of_a_cell() {
        let levels = STEPS_MAX / 2;
        let deep = format!("{}\"{}\"{}", r#"{"a":"#.repeat(levels), "x".repeat(1 << 20), "}".repeat(levels));
        assert!(JsonPath::parse(&".a".repeat(levels)).unwrap().first(Json::new(deep.as_bytes())).is_none());
        assert!(JsonPath::parse(&".a".repeat(50)).unwrap().first(Json::new(deep.as_bytes())).is_some());
    }

    proptest! {
        #[test]
        fn json_path_parser_accepts_any_text_without_panic(path in r#"[.,:\[\]?(@)=<>'"\\a-cé0-3*{}$ -]{0,20}"#) {
            if let Some(path) = JsonPath::parse(&path) {
                let _ = path.first(Json::new(OBJECT));
            }
        }
    }
}
