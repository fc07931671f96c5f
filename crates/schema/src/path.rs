//! Paths of values in a document: linked lists on the stack that are formatted only for errors.

use std::fmt;

use crate::limits::STEP_SHOWN_BYTES_MAX;

/// Formats a path element, truncated to [`STEP_SHOWN_BYTES_MAX`] bytes.
struct TruncatedName<'a>(&'a str);

impl fmt::Display for TruncatedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut end = STEP_SHOWN_BYTES_MAX;
        if self.0.len() <= end {
            return f.write_str(self.0);
        }
        while !self.0.is_char_boundary(end) {
            end -= 1;
        }
        write!(f, "{}…", &self.0[..end])
    }
}

/// A path of a field as apimachinery's `field.Path` prints it. The empty path prints `<nil>`.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Nil,
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The empty path.
    pub const NIL: Path<'static> = Path { parent: None, step: Step::Nil };

    /// A path that begins with this text; `""` is [`Path::NIL`].
    pub fn root(text: &'a str) -> Path<'a> {
        if text.is_empty() { Path::NIL } else { Path { parent: None, step: Step::Name(text) } }
    }

    /// The path of a named field of this value.
    pub fn child(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Name(name) }
    }

    /// The path of a list item of this value.
    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// The path of a map value of this value.
    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(key) }
    }

    fn is_nil(&self) -> bool {
        matches!(self.step, Step::Nil)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent = self.parent.filter(|parent| !parent.is_nil());
        if let Some(parent) = parent {
            parent.write(f)?;
        }
        match self.step {
            Step::Nil => Ok(()),
            Step::Name(name) if parent.is_some() => write!(f, ".{}", TruncatedName(name)),
            Step::Name(name) => write!(f, "{}", TruncatedName(name)),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{}]", TruncatedName(key)),
        }
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> String {
        path.to_string()
    }
}

impl From<&Path<'_>> for String {
    fn from(path: &Path<'_>) -> String {
        path.to_string()
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nil() { f.write_str("<nil>") } else { self.write(f) }
    }
}

/// A path inside a value in the format of go-openapi's validator: dots and indexes. A map key has a
/// leading dot even at the root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValuePath<'a> {
    parent: Option<&'a ValuePath<'a>>,
    step: ValueStep<'a>,
}

#[derive(Clone, Copy, Debug)]
enum ValueStep<'a> {
    Root,
    Property(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> ValuePath<'a> {
    /// The path of the value itself.
    pub(crate) const ROOT: ValuePath<'static> = ValuePath { parent: None, step: ValueStep::Root };

    /// The path of a property in the schema.
    pub(crate) fn property(&'a self, name: &'a str) -> ValuePath<'a> {
        ValuePath { parent: Some(self), step: ValueStep::Property(name) }
    }

    /// The path of a map value, or of a missing property.
    pub(crate) fn key(&'a self, name: &'a str) -> ValuePath<'a> {
        ValuePath { parent: Some(self), step: ValueStep::Key(name) }
    }

    /// The path of a list item.
    pub(crate) fn index(&'a self, index: usize) -> ValuePath<'a> {
        ValuePath { parent: Some(self), step: ValueStep::Index(index) }
    }

    /// The path of the enclosing value. The root is its own parent.
    pub(crate) fn parent(&self) -> &ValuePath<'a> {
        self.parent.unwrap_or(self)
    }

    /// True if this is the path of the value itself.
    pub(crate) fn is_root(&self) -> bool {
        matches!(self.step, ValueStep::Root)
    }
}

impl fmt::Display for ValuePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            ValueStep::Root => Ok(()),
            ValueStep::Property(name) if self.parent.is_some_and(ValuePath::is_root) => {
                write!(f, "{}", TruncatedName(name))
            }
            ValueStep::Property(name) | ValueStep::Key(name) => write!(f, ".{}", TruncatedName(name)),
            ValueStep::Index(index) => write!(f, "[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_paths_are_formatted_as_in_kubernetes() {
        let nil = Path::NIL;
        assert_eq!(nil.to_string(), "<nil>");
        assert_eq!(nil.child("spec").to_string(), "spec");
        assert_eq!(nil.index(3).to_string(), "[3]");
        let spec = Path::root("spec");
        let list = spec.child("list");
        let item = list.index(2);
        assert_eq!(item.key("a.b").to_string(), "spec.list[2][a.b]");
        assert_eq!(Path::root("").to_string(), "<nil>");
    }

    #[test]
    fn long_path_element_is_truncated() {
        let long = "ä".repeat(STEP_SHOWN_BYTES_MAX);
        let shown = Path::root("spec").key(&long).to_string();
        assert_eq!(shown, format!("spec[{}…]", "ä".repeat(STEP_SHOWN_BYTES_MAX / 2)));
    }

    #[test]
    fn value_paths_are_formatted_as_by_the_validator() {
        let root = ValuePath::ROOT;
        assert_eq!(root.to_string(), "");
        let spec = root.property("spec");
        let items = spec.property("items");
        assert_eq!(items.index(0).to_string(), "spec.items[0]");
        assert_eq!(spec.key("k").to_string(), "spec.k");
        assert_eq!(root.key("k").to_string(), ".k");
    }
}
