//! [`Cell`]: one cell of a Table row.

/// One cell of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// A string.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Number(f64),
    /// A boolean.
    Bool(bool),
    /// `null`: the object lacks the value.
    Null,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::Text(text.to_owned())
    }
}

impl From<i64> for Cell {
    fn from(number: i64) -> Self {
        Cell::Integer(number)
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Cell::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Cell {
    fn from(flag: bool) -> Self {
        Cell::Bool(flag)
    }
}
