//! The JSON paths of `additionalPrinterColumns`: [`JsonPath`], the subset of Kubernetes' JSON path that definitions
//! use.
//!
//! ```text
//!  .spec.replicas          members; a dot in a name is escaped: .metadata.labels.app\.kubernetes\.io/name
//!  ['spec']["replicas"]    the same
//!  .items[0]  .items[-1]   elements, from the end when negative
//!  .items[*]  .items[]     all elements, or all values of an object
//!  .status.conditions[?(@.type=="Ready")].status     elements that pass a filter: == != < <= > >=, or presence
//! ```
//!
//! A column shows the first value. Recursive descent, slices and unions are rejected.

use listwatch_kinds::table::Json;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Member(String),
    Element(i64),
    All,
    Filter(JsonPath, Option<(Operator, Literal)>),
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

#[derive(Clone, Debug, PartialEq)]
enum Literal {
    Text(String),
    Number(f64),
    Bool(bool),
}

impl JsonPath {
    /// Parses a path; `None` if the syntax is not supported. The braces of `{.spec}` are optional.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(text);
        let mut parser = Parser { rest: text.strip_prefix('$').unwrap_or(text) };
        let steps = parser.steps()?;
        parser.rest.is_empty().then_some(JsonPath(steps))
    }

    /// Returns the first value at the path.
    pub(super) fn first<'a>(&self, root: Json<'a>) -> Option<Json<'a>> {
        walk(&self.0, root)
    }
}

fn walk<'a>(steps: &[Step], value: Json<'a>) -> Option<Json<'a>> {
    let Some((step, rest)) = steps.split_first() else {
        return Some(value).filter(|value| !value.raw().is_empty());
    };
    match step {
        Step::Member(name) => {
            let member = value.get(name);
            if member.raw().is_empty() { None } else { walk(rest, member) }
        }
        Step::Element(index) => {
            let items = value.items();
            let at = if *index < 0 { items.len() as i64 + index } else { *index };
            items.get(usize::try_from(at).ok()?).and_then(|item| walk(rest, *item))
        }
        Step::All => children(value).into_iter().find_map(|child| walk(rest, child)),
        Step::Filter(path, condition) => {
            let passes = |child: &Json<'a>| match (path.first(*child), condition) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(found), Some((operator, literal))) => compare(found, *operator, literal),
            };
            children(value).into_iter().filter(passes).find_map(|child| walk(rest, child))
        }
    }
}

fn children(value: Json<'_>) -> Vec<Json<'_>> {
    match value.raw().first() {
        Some(b'[') => value.items(),
        _ => value.entries().into_iter().map(|(_, member)| member).collect(),
    }
}

fn compare(value: Json<'_>, operator: Operator, literal: &Literal) -> bool {
    let order = match literal {
        Literal::Text(text) => value.text().map(|own| own.as_ref().cmp(text.as_str())),
        Literal::Number(number) => value.float().and_then(|own| own.partial_cmp(number)),
        Literal::Bool(flag) => value.bool().map(|own| own.cmp(flag)),
    };
    let Some(order) = order else {
        return false; // different types compare as nothing
    };
    match operator {
        Operator::Equal => order.is_eq(),
        Operator::NotEqual => order.is_ne(),
        Operator::Less => order.is_lt(),
        Operator::LessOrEqual => order.is_le(),
        Operator::Greater => order.is_gt(),
        Operator::GreaterOrEqual => order.is_ge(),
    }
}

struct Parser<'t> {
    rest: &'t str,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn steps(&mut self) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        loop {
            if self.eat("[") {
                steps.push(self.bracket()?);
            } else if self.eat(".") {
                if self.rest.starts_with('.') {
                    return None; // recursive descent
                }
                if self.rest.starts_with('[') || self.rest.is_empty() {
                    continue; // `.` alone is the root, `.[0]` an element of it
                }
                let name = self.name();
                steps.push(match name.as_str() {
                    "" => return None,
                    "*" => Step::All,
                    _ => Step::Member(name),
                });
            } else {
                return Some(steps);
            }
        }
    }

    /// Parses the name of a member, up to the next step or operator. A backslash escapes the next character.
    fn name(&mut self) -> String {
        let mut name = String::new();
        let mut characters = self.rest.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
                '.' | '[' | ']' | ')' | ' ' | '=' | '!' | '<' | '>' => {
                    self.rest = &self.rest[at..];
                    return name;
                }
                _ => name.push(character),
            }
        }
        self.rest = "";
        name
    }

    fn bracket(&mut self) -> Option<Step> {
        if self.eat("?(") {
            return self.filter();
        }
        if let Some(text) = self.quoted() {
            return self.eat("]").then_some(Step::Member(text));
        }
        let (inside, rest) = self.rest.split_once(']')?;
        self.rest = rest;
        match inside.trim() {
            "*" | "" => Some(Step::All),
            index => index.parse().ok().map(Step::Element),
        }
    }

    fn quoted(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let mut text = String::new();
        let mut characters = self.rest[1..].char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => text.extend(characters.next().map(|(_, escaped)| escaped)),
                _ if character == quote => {
                    self.rest = &self.rest[1 + at + 1..];
                    return Some(text);
                }
                _ => text.push(character),
            }
        }
        None
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn filter(&mut self) -> Option<Step> {
        self.space();
        self.eat("@").then_some(())?;
        let path = JsonPath(self.steps()?);
        self.space();
        let operator = [
            ("==", Operator::Equal),
            ("!=", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ]
        .into_iter()
        .find_map(|(token, operator)| self.eat(token).then_some(operator));
        let condition = match operator {
            None => None,
            Some(operator) => {
                self.space();
                Some((operator, self.literal()?))
            }
        };
        self.space();
        self.eat(")]").then_some(Step::Filter(path, condition))
    }

    fn literal(&mut self) -> Option<Literal> {
        if let Some(text) = self.quoted() {
            return Some(Literal::Text(text));
        }
        let end = self.rest.find([')', ' '])?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "true" => Some(Literal::Bool(true)),
            "false" => Some(Literal::Bool(false)),
            _ => word.parse().ok().map(Literal::Number),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OBJECT: &[u8] = br#"{
        "metadata": {"labels": {"app.kubernetes.io/name": "shop", "plain": "p"}},
        "spec": {"replicas": 3, "items": [{"n": 1}, {"n": 2, "ok": true}, {"n": 3}], "empty": []},
        "status": {"conditions": [
            {"type": "Synced", "status": "False"},
            {"type": "Ready", "status": "True", "reason": null}
        ]}
    }"#;

    #[test]
    fn json_path_returns_the_first_value() {
        for (path, expected) in [
            (".spec.replicas", Some("3")),
            ("{.spec.replicas}", Some("3")),
            ("$.spec.replicas", Some("3")),
            ("['spec'][\"replicas\"]", Some("3")),
            (".spec['replicas']", Some("3")),
            (r".metadata.labels.app\.kubernetes\.io/name", Some("\"shop\"")),
            (".metadata.labels['app.kubernetes.io/name']", Some("\"shop\"")),
            (".metadata.labels[*]", Some("\"shop\"")),
            (".metadata.labels.*", Some("\"shop\"")),
            (".spec.items[1].n", Some("2")),
            (".spec.items[-1].n", Some("3")),
            (".spec.items[9].n", None),
            (".spec.items[-9].n", None),
            (".spec.items[*].ok", Some("true")),
            (".spec.empty[*]", None),
            (".spec.empty", Some("[]")),
            (r#".status.conditions[?(@.type=="Ready")].status"#, Some("\"True\"")),
            (r#".status.conditions[?(@.type == 'Ready')].status"#, Some("\"True\"")),
            (r#".status.conditions[?(@.type!="Ready")].status"#, Some("\"False\"")),
            (r#".status.conditions[?(@.type=="Gone")].status"#, None),
            (r#".status.conditions[?(@.type=="Ready")].reason"#, Some("null")),
            (".spec.items[?(@.n>1)].n", Some("2")),
            (".spec.items[?(@.n >= 3)].n", Some("3")),
            (".spec.items[?(@.ok)].n", Some("2")),
            (".spec.items[?(@.ok==true)].n", Some("2")),
            (".spec.items[?(@.n==\"1\")].n", None),
            (".nothing.here", None),
            (".spec.replicas.deeper", None),
        ] {
            let parsed = JsonPath::parse(path).unwrap_or_else(|| panic!("{path} parses"));
            let found = parsed.first(Json::new(OBJECT)).map(|value| std::str::from_utf8(value.raw()).unwrap());
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn unsupported_json_path_is_rejected() {
        for path in ["..spec", ".spec..x", ".a[", ".a['b", ".a[?(b)]", ".a[1:2]", ".a[?(@.b==)]", ".a[x]", ".a b"] {
            assert_eq!(JsonPath::parse(path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn json_path_parser_accepts_any_text_without_panic(path in r#"[.\[\]?(@)=<>'"\\a-c0-3*{}$ -]{0,20}"#) {
            if let Some(path) = JsonPath::parse(&path) {
                let _ = path.first(Json::new(OBJECT));
            }
        }
    }
}
