//! Translates regular expressions in RE2 syntax, which Go's `regexp` reads, to the syntax of the regex engine:
//! [`translate`].
//!
//! Both engines take linear time and agree on most expressions. They differ in the syntax:
//!
//! | expression | Go | engine |
//! |---|---|---|
//! | `\d` `\w` `\s` `\b` | ASCII | Unicode |
//! | `{` without a count behind it | literal | error |
//! | `[`, `&&`, `--`, `~~` in a class | literals | nested classes and set operations |
//! | `\Q…\E`, `\101` | literals, octal digits | errors |
//! | flags `x`, `u`, `R`, `\Z`, `\<`, `\u{…}`, `(?#…)` | errors, or literals | supported |
//!
//! The translation has only constructs that both engines read alike, and no capture groups. Rules: Go's
//! `regexp/syntax`, `parse` with the flags `Perl`, as of Go 1.26.

use std::fmt::Write;

use regex_automata::util::syntax;

/// The largest count of a repetition, also of nested repetitions together (Go's `repeatIsValid`).
const REPEAT_MAX: u32 = 1_000;

/// The largest number of groups and repetitions inside each other. The engine rejects deeper ones with the same error;
/// Go's `maxHeight` is 1,000. The translation moves the output behind a repetition once per nested repetition, so it
/// checks the nesting itself.
const NESTING_MAX: u32 = 250;

/// The classes that Go knows in brackets: `[[:alpha:]]`.
const POSIX_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// Unicode's general categories and their aliases, in lower case and without separators.
const CATEGORIES: [&str; 83] = [
    "any",
    "ascii",
    "assigned",
    "c",
    "casedletter",
    "cc",
    "cf",
    "closepunctuation",
    "cn",
    "cntrl",
    "co",
    "combiningmark",
    "connectorpunctuation",
    "control",
    "cs",
    "currencysymbol",
    "dashpunctuation",
    "decimalnumber",
    "digit",
    "enclosingmark",
    "finalpunctuation",
    "format",
    "initialpunctuation",
    "l",
    "lc",
    "letter",
    "letternumber",
    "lineseparator",
    "ll",
    "lm",
    "lo",
    "lowercaseletter",
    "lt",
    "lu",
    "m",
    "mark",
    "mathsymbol",
    "mc",
    "me",
    "mn",
    "modifierletter",
    "modifiersymbol",
    "n",
    "nd",
    "nl",
    "no",
    "nonspacingmark",
    "number",
    "openpunctuation",
    "other",
    "otherletter",
    "othernumber",
    "otherpunctuation",
    "othersymbol",
    "p",
    "paragraphseparator",
    "pc",
    "pd",
    "pe",
    "pf",
    "pi",
    "po",
    "privateuse",
    "ps",
    "punct",
    "punctuation",
    "s",
    "sc",
    "separator",
    "sk",
    "sm",
    "so",
    "spaceseparator",
    "spacingmark",
    "surrogate",
    "symbol",
    "titlecaseletter",
    "unassigned",
    "uppercaseletter",
    "z",
    "zl",
    "zp",
    "zs",
];

/// The scripts whose name has four letters. The engine also reads Unicode's four-letter codes; Go does not.
const SCRIPTS_OF_FOUR_LETTERS: [&str; 9] = ["ahom", "cham", "kawi", "lisu", "miao", "modi", "newa", "thai", "toto"];

/// A class that contains no character.
const EMPTY_CLASS: &str = "[a&&b]";

/// Translates an expression.
///
/// # Errors
/// Go's error text. Go's size limits are not checked; the engine has its own.
pub(crate) fn translate(pattern: &str) -> Result<String, String> {
    let mut parser = Parser {
        pattern,
        rest: pattern,
        last_name_end: pattern.rfind(":]").unwrap_or_default(),
        out: String::with_capacity(pattern.len() + 8),
        flags: Flags::default(),
        open: Vec::new(),
        sequence: Sequence::default(),
    };
    parser.expression()?;
    Ok(parser.out)
}

fn error<T>(code: &str, part: &str) -> Result<T, String> {
    Err(format!("error parsing regexp: {code}: `{part}`"))
}

/// The flags that Go knows.
#[derive(Clone, Copy, Default, PartialEq)]
struct Flags {
    fold_case: bool,
    multi_line: bool,
    dot_matches_newline: bool,
    swap_greed: bool,
}

impl Flags {
    /// The flags that the engine is told. The translation of a repetition applies `U` itself.
    fn all(self) -> [(char, bool); 3] {
        [('i', self.fold_case), ('m', self.multi_line), ('s', self.dot_matches_newline)]
    }

    fn set(&mut self, name: char, on: bool) -> bool {
        match name {
            'i' => self.fold_case = on,
            'm' => self.multi_line = on,
            's' => self.dot_matches_newline = on,
            'U' => self.swap_greed = on,
            _ => return false,
        }
        true
    }

    /// The letters that change flags to these.
    fn changes(self, before: Flags) -> String {
        let (mut on, mut off) = (String::new(), String::new());
        for ((name, now), (_, then)) in self.all().into_iter().zip(before.all()) {
            match (then, now) {
                (false, true) => on.push(name),
                (true, false) => off.push(name),
                _ => {}
            }
        }
        if off.is_empty() { on } else { format!("{on}-{off}") }
    }
}

/// A part of an expression that a repetition can follow.
#[derive(Clone, Copy)]
struct Atom {
    /// Its place in the output.
    start: usize,
    end: usize,
    /// The number of copies of its innermost part, by counted repetitions.
    copies: u32,
    /// The number of repetitions around it.
    repeats: u32,
    /// The number of groups and repetitions inside each other, at least. The engine also counts other constructs.
    height: u32,
}

/// The state of one group.
#[derive(Default)]
struct Sequence {
    last: Option<Atom>,
    /// The largest [`Atom::copies`] in this group.
    copies: u32,
    /// The largest [`Atom::height`] in this group.
    height: u32,
}

struct OpenGroup {
    start: usize,
    flags: Flags,
    /// The state of the group around it.
    outer: Sequence,
}

struct Parser<'p> {
    pattern: &'p str,
    rest: &'p str,
    /// The place of the last `:]` in the pattern. It is searched once, not for each `[:`.
    last_name_end: usize,
    out: String,
    flags: Flags,
    open: Vec<OpenGroup>,
    sequence: Sequence,
}

/// Returns the text before `rest`, which is a suffix of `text`.
fn before<'p>(text: &'p str, rest: &str) -> &'p str {
    text.get(..text.len().saturating_sub(rest.len())).unwrap_or(text)
}

impl<'p> Parser<'p> {
    fn expression(&mut self) -> Result<(), String> {
        // The text from the previous repetition on, if the previous construct is one.
        let mut last_repeat: Option<&str> = None;
        while let Some(c) = self.rest.chars().next() {
            let here = self.rest;
            let mut repeat = None;
            match c {
                '(' if here.starts_with("(?") => self.perl_group()?,
                '(' => {
                    self.advance(1);
                    self.open_group("(?:", self.flags)?;
                }
                ')' => self.close_group()?,
                '|' => {
                    self.advance(1);
                    self.out.push('|');
                    self.end_branch();
                }
                '^' | '$' | '.' => {
                    self.advance(1);
                    self.atom(|out| out.push(c));
                }
                '[' => self.class()?,
                '*' | '+' | '?' => {
                    self.advance(1);
                    self.repeat(here, &c.to_string(), None, last_repeat)?;
                    repeat = Some(here);
                }
                '{' => match counts(here) {
                    None => self.literal_char(c),
                    Some((min, max, rest)) => {
                        self.rest = rest;
                        let shown = before(here, rest);
                        let (Some(min), Ok(max)) = (min, max) else { return error("invalid repeat count", shown) };
                        if min > REPEAT_MAX || max.is_some_and(|max| max > REPEAT_MAX || min > max) {
                            return error("invalid repeat count", shown);
                        }
                        self.repeat(here, shown, Some((min, max)), last_repeat)?;
                        repeat = Some(here);
                    }
                },
                '\\' => self.escape()?,
                c => self.literal_char(c),
            }
            last_repeat = repeat;
        }
        if self.open.is_empty() { Ok(()) } else { error("missing closing )", self.pattern) }
    }

    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    /// Reads a character.
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.advance(c.len_utf8());
        Some(c)
    }

    fn atom(&mut self, write: impl FnOnce(&mut String)) {
        let start = self.out.len();
        write(&mut self.out);
        self.push_atom(Atom { start, end: self.out.len(), copies: 1, repeats: 0, height: 0 });
    }

    fn push_atom(&mut self, atom: Atom) {
        self.sequence.copies = self.sequence.copies.max(atom.copies);
        self.sequence.height = self.sequence.height.max(atom.height);
        self.sequence.last = Some(atom);
    }

    /// Reads a character that stands for itself.
    fn literal_char(&mut self, c: char) {
        self.advance(c.len_utf8());
        self.literal(u32::from(c));
    }

    fn literal(&mut self, rune: u32) {
        self.atom(|out| match char::from_u32(rune) {
            Some(c) => push_char(out, c),
            // A surrogate is in no text.
            None => out.push_str(EMPTY_CLASS),
        });
    }

    fn end_branch(&mut self) {
        self.sequence.last = None;
    }

    /// Checks a number of groups and repetitions inside each other.
    fn check_height(&self, height: u32) -> Result<(), String> {
        if height > NESTING_MAX { error("expression nests too deeply", self.pattern) } else { Ok(()) }
    }

    fn open_group(&mut self, opening: &str, flags: Flags) -> Result<(), String> {
        let (start, outer) = (self.out.len(), std::mem::take(&mut self.sequence));
        self.out.push_str(opening);
        self.open.push(OpenGroup { start, flags: self.flags, outer });
        self.flags = flags;
        self.check_height(u32::try_from(self.open.len()).unwrap_or(u32::MAX))
    }

    fn close_group(&mut self) -> Result<(), String> {
        self.advance(1);
        let Some(group) = self.open.pop() else { return error("unexpected )", self.pattern) };
        self.out.push(')');
        self.flags = group.flags;
        let inner = std::mem::replace(&mut self.sequence, group.outer);
        let (copies, height) = (inner.copies.max(1), inner.height + 1);
        self.push_atom(Atom { start: group.start, end: self.out.len(), copies, repeats: 0, height });
        self.check_height(height)
    }

    /// Reads `(?…`: a named group, flags, or a group with flags (Go's `parsePerlFlags`).
    fn perl_group(&mut self) -> Result<(), String> {
        let here = self.rest;
        let name_at = match here {
            _ if here.starts_with("(?P<") && here.len() > 4 => Some(4),
            _ if here.starts_with("(?<") && here.len() > 3 => Some(3),
            _ => None,
        };
        if let Some(name_at) = name_at {
            let Some(end) = here.find('>') else { return error("invalid named capture", here) };
            let name = here.get(name_at..end).unwrap_or_default();
            if name.is_empty() || !name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) {
                return error("invalid named capture", here.get(..=end).unwrap_or(here));
            }
            self.advance(end + 1);
            return self.open_group("(?:", self.flags);
        }
        self.advance(2);
        let (mut flags, mut on, mut seen) = (self.flags, true, false);
        while let Some(c) = self.next() {
            match c {
                '-' if on => (on, seen) = (false, false),
                ':' | ')' if on || seen => {
                    let changes = flags.changes(self.flags);
                    if c == ':' {
                        self.open_group(&format!("(?{changes}:"), flags)?;
                    } else {
                        if !changes.is_empty() {
                            let _ = write!(self.out, "(?{changes})");
                        }
                        self.flags = flags;
                    }
                    return Ok(());
                }
                c if flags.set(c, on) => seen = true,
                _ => break,
            }
        }
        error("invalid or unsupported Perl syntax", before(here, self.rest))
    }

    /// Applies a repetition to the last atom. `here` is the text from the repetition on, `self.rest` the text behind
    /// its operator.
    fn repeat(
        &mut self,
        here: &'p str,
        operator: &str,
        counts: Option<(u32, Option<u32>)>,
        last_repeat: Option<&str>,
    ) -> Result<(), String> {
        let lazy = self.rest.starts_with('?');
        if lazy {
            self.advance(1);
        }
        if let Some(last) = last_repeat {
            return error("invalid nested repetition operator", before(last, self.rest));
        }
        let shown = before(here, self.rest);
        let Some(mut atom) = self.sequence.last else {
            return error("missing argument to repetition operator", shown);
        };
        if let Some((min, max)) = counts {
            // No copy is one that needs no state.
            let times = max.unwrap_or(min);
            let copies = if times == 0 { 1 } else { atom.copies.saturating_mul(times) };
            if copies > REPEAT_MAX && (min >= 2 || max.is_some_and(|max| max >= 2)) {
                return error("invalid repeat count", shown);
            }
            atom.copies = copies;
        }
        atom.repeats += 1;
        // A further repetition also has a group in the output.
        atom.height += if atom.repeats > 1 { 2 } else { 1 };
        self.check_height(atom.height)?;
        if atom.repeats > 1 {
            // `(?:` keeps the engine from reading a lazy repetition.
            self.out.insert_str(atom.start, "(?:");
            self.out.insert(atom.end + 3, ')');
            atom.end += 4;
        }
        // Flags may stand between the atom and the repetition.
        self.out.insert_str(atom.end, operator);
        atom.end += operator.len();
        if lazy != self.flags.swap_greed {
            self.out.insert(atom.end, '?');
            atom.end += 1;
        }
        self.push_atom(atom);
        Ok(())
    }

    /// Reads a backslash outside of a class.
    fn escape(&mut self) -> Result<(), String> {
        let here = self.rest;
        match here.as_bytes().get(1) {
            Some(b'C') => return error("invalid escape sequence", r"\C"),
            Some(b'Q') => {
                let text = here.get(2..).unwrap_or_default();
                let (literals, rest) = text.split_once(r"\E").unwrap_or((text, ""));
                literals.chars().for_each(|c| self.literal(u32::from(c)));
                self.rest = rest;
                return Ok(());
            }
            _ => {}
        }
        let assertion = match here.as_bytes().get(1) {
            Some(b'A') => r"\A",
            Some(b'z') => r"\z",
            Some(b'b') => r"(?-u:\b)",
            Some(b'B') => r"(?-u:\B)",
            _ => "",
        };
        if !assertion.is_empty() {
            self.advance(2);
            self.atom(|out| out.push_str(assertion));
            return Ok(());
        }
        let mut class = String::new();
        if self.class_escape(&mut class)? {
            self.atom(|out| {
                let _ = write!(out, "[{class}]");
            });
            return Ok(());
        }
        let rune = self.char_escape()?;
        self.literal(rune);
        Ok(())
    }

    /// Reads a class without brackets, `\d` or `\pL`, and writes it as a part of a class. Returns false if there is
    /// none.
    fn class_escape(&mut self, out: &mut String) -> Result<bool, String> {
        let perl = match self.rest.as_bytes() {
            [b'\\', b'd' | b'D', ..] => "0-9",
            [b'\\', b's' | b'S', ..] => r"\t\n\f\r\x20",
            [b'\\', b'w' | b'W', ..] => "0-9A-Za-z_",
            [b'\\', b'p' | b'P', ..] => return self.unicode_class(out).map(|()| true),
            _ => return Ok(false),
        };
        let negated = self.rest.as_bytes().get(1).is_some_and(u8::is_ascii_uppercase);
        let _ = if negated { write!(out, "[^{perl}]") } else { write!(out, "{perl}") };
        self.advance(2);
        Ok(true)
    }

    /// Reads `\pL`, `\p{Greek}`, `\p{^Greek}` or their negations.
    fn unicode_class(&mut self, out: &mut String) -> Result<(), String> {
        const CODE: &str = "invalid character class range";
        let here = self.rest;
        let mut negated = here.starts_with(r"\P");
        self.advance(2);
        let mut name = match self.next() {
            Some('{') => {
                let Some((inside, rest)) = self.rest.split_once('}') else { return error(CODE, here) };
                self.rest = rest;
                inside
            }
            _ => before(here, self.rest).get(2..).unwrap_or_default(),
        };
        if let Some(rest) = name.strip_prefix('^') {
            (negated, name) = (!negated, rest);
        }
        let seq = before(here, self.rest);
        let canonical: String =
            name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).map(|c| c.to_ascii_lowercase()).collect();
        let letter = if negated { 'P' } else { 'p' };
        let class = match canonical.as_str() {
            // A surrogate is in no text.
            "cs" | "surrogate" if negated => r"\x00-\x{10ffff}".to_owned(),
            "cs" | "surrogate" => EMPTY_CLASS.to_owned(),
            category if CATEGORIES.contains(&category) => format!(r"\{letter}{{gc={category}}}"),
            script => {
                let is_code = script.len() == 4 && !SCRIPTS_OF_FOUR_LETTERS.contains(&script);
                let plain = script.bytes().all(|b| b.is_ascii_alphabetic()) && !script.starts_with("is");
                let class = format!(r"\{letter}{{sc={script}}}");
                if script.is_empty() || is_code || !plain || syntax::parse(&class).is_err() {
                    return error(CODE, seq);
                }
                class
            }
        };
        out.push_str(&class);
        Ok(())
    }

    /// Reads an escaped character and returns its code point (Go's `parseEscape`).
    fn char_escape(&mut self) -> Result<u32, String> {
        let here = self.rest;
        self.advance(1);
        let Some(c) = self.next() else {
            return error("trailing backslash at end of expression", "");
        };
        let octal = |c: Option<char>| c.and_then(|c| c.to_digit(8));
        let found = match c {
            '1'..='7' if octal(self.rest.chars().next()).is_none() => None,
            '0'..='7' => {
                let mut rune = c.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    let Some(digit) = octal(self.rest.chars().next()) else { break };
                    rune = rune * 8 + digit;
                    self.advance(1);
                }
                Some(rune)
            }
            'x' => self.hexadecimal(),
            'a' => Some(0x07),
            'f' => Some(0x0c),
            'n' => Some(0x0a),
            'r' => Some(0x0d),
            't' => Some(0x09),
            'v' => Some(0x0b),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Some(u32::from(c)),
            _ => None,
        };
        match found {
            Some(rune) => Ok(rune),
            None => error("invalid escape sequence", before(here, self.rest)),
        }
    }

    /// Reads the digits of `\x7f` or `\x{10ffff}`.
    fn hexadecimal(&mut self) -> Option<u32> {
        let first = self.next()?;
        if first != '{' {
            let second = self.next()?;
            return Some(first.to_digit(16)? * 16 + second.to_digit(16)?);
        }
        let mut rune = None;
        loop {
            match self.next()? {
                '}' => return rune,
                digit => {
                    let value = rune.unwrap_or_default() * 16 + digit.to_digit(16)?;
                    rune = Some(value).filter(|rune| *rune <= u32::from(char::MAX));
                    rune?;
                }
            }
        }
    }

    /// Reads a class in brackets (Go's `parseClass`).
    fn class(&mut self) -> Result<(), String> {
        let whole = self.rest;
        self.advance(1);
        let mut class = String::from("[");
        if self.rest.starts_with('^') {
            class.push('^');
            self.advance(1);
        }
        let mut first = true;
        while first || !self.rest.starts_with(']') {
            first = false;
            if self.posix_class(&mut class)? || self.class_escape(&mut class)? {
                continue;
            }
            let range = self.rest;
            let low = self.class_char(whole)?;
            let mut high = low;
            if self.rest.starts_with('-') && self.rest.len() >= 2 && !self.rest.starts_with("-]") {
                self.advance(1);
                high = self.class_char(whole)?;
                if high < low {
                    return error("invalid character class range", before(range, self.rest));
                }
            }
            push_range(&mut class, low, high);
        }
        self.advance(1);
        class.push(']');
        self.atom(|out| out.push_str(&class));
        Ok(())
    }

    /// Reads `[:name:]` in a class. Returns false if there is none.
    fn posix_class(&mut self, out: &mut String) -> Result<bool, String> {
        if self.pattern.len() - self.rest.len() > self.last_name_end {
            return Ok(false);
        }
        let Some((name, rest)) = self.rest.strip_prefix("[:").and_then(|text| text.split_once(":]")) else {
            return Ok(false);
        };
        let shown = before(self.rest, rest);
        if !POSIX_CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return error("invalid character class range", shown);
        }
        out.push_str(shown);
        self.rest = rest;
        Ok(true)
    }

    fn class_char(&mut self, whole: &str) -> Result<u32, String> {
        if self.rest.starts_with('\\') {
            return self.char_escape();
        }
        match self.next() {
            Some(c) => Ok(u32::from(c)),
            None => error("missing closing ]", whole),
        }
    }
}

/// Writes a literal character. Only letters and digits have no meaning in any context.
fn push_char(out: &mut String, c: char) {
    if c.is_ascii_alphanumeric() || !c.is_ascii() {
        out.push(c);
    } else {
        let _ = write!(out, r"\x{:02x}", u32::from(c));
    }
}

/// Writes a range of a class without the surrogates, which are in no text.
fn push_range(class: &mut String, low: u32, high: u32) {
    const SURROGATES: std::ops::RangeInclusive<u32> = 0xd800..=0xdfff;
    let parts = [(low, high.min(SURROGATES.start() - 1)), (low.max(SURROGATES.end() + 1), high)];
    let mut is_empty = true;
    for (low, high) in parts {
        if let (true, Some(low), Some(high)) = (low <= high, char::from_u32(low), char::from_u32(high)) {
            is_empty = false;
            push_char(class, low);
            if low < high {
                class.push('-');
                push_char(class, high);
            }
        }
    }
    if is_empty {
        class.push_str(EMPTY_CLASS);
    }
}

/// Reads `{3}`, `{3,}` or `{3,5}`: the counts and the text behind them. `None` if the brace is a literal. A count that
/// is far too large is `None` (the minimum) or an error (the maximum).
#[allow(clippy::type_complexity)] // read at one place
fn counts(text: &str) -> Option<(Option<u32>, Result<Option<u32>, ()>, &str)> {
    let (min, rest) = count(text.strip_prefix('{')?)?;
    let (max, rest) = match rest.strip_prefix(',') {
        None => (min.map(Some).ok_or(()), rest),
        Some(rest) if rest.starts_with('}') => (Ok(None), rest),
        Some(rest) => {
            let (max, rest) = count(rest)?;
            (max.map(Some).ok_or(()), rest)
        }
    };
    Some((min, max, rest.strip_prefix('}')?))
}

/// Reads a number without leading zeros.
fn count(text: &str) -> Option<(Option<u32>, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(digits)?;
    let is_number = digits > 0 && (digits == 1 || !number.starts_with('0'));
    is_number.then(|| (number.parse().ok(), rest))
}

#[cfg(test)]
mod tests;
