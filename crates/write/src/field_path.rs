//! The path of a value in a body, for decoding errors. The path is a linked list on the stack, innermost step first.

use std::fmt;

/// The last step of a path, with the steps before it.
#[derive(Clone, Copy)]
pub(super) struct FieldPath<'a> {
    pub(super) parent: Option<&'a FieldPath<'a>>,
    pub(super) step: Step<'a>,
}

/// One step of a path.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    /// A field of a type, or a member of an untyped object: `.name`.
    Field(&'a str),
    /// A member of a map. Type errors omit this step.
    Member(&'a str),
    /// An item of a list, by index. Type errors omit this step.
    Item(usize),
}

impl FieldPath<'_> {
    /// Formats the path as in Go's type errors, with fields only: `spec.containers.name`.
    pub(super) fn typed_path(&self) -> String {
        let mut out = String::new();
        // Writing into a `String` cannot fail.
        let _ = self.write(false, &mut out);
        out
    }

    /// Writes the path, and returns whether anything was written. `exact` includes map keys and list indices.
    fn write(&self, exact: bool, out: &mut impl fmt::Write) -> Result<bool, fmt::Error> {
        let before = self.parent.map_or(Ok(false), |parent| parent.write(exact, out))?;
        match self.step {
            Step::Item(at) if exact => write!(out, "[{at}]")?,
            Step::Field(name) | Step::Member(name) if exact || matches!(self.step, Step::Field(_)) => {
                if before {
                    out.write_char('.')?;
                }
                out.write_str(name)?;
            }
            Step::Item(_) | Step::Member(_) | Step::Field(_) => return Ok(before),
        }
        Ok(true)
    }
}

/// Formats the path as in Go's strict decoding errors: `spec.containers[0].name`.
impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(true, f).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_path_is_formatted_for_type_errors_and_strict_errors() {
        let spec = FieldPath { parent: None, step: Step::Field("spec") };
        let list = FieldPath { parent: Some(&spec), step: Step::Field("containers") };
        let item = FieldPath { parent: Some(&list), step: Step::Item(0) };
        let map = FieldPath { parent: Some(&item), step: Step::Field("limits") };
        let cpu = FieldPath { parent: Some(&map), step: Step::Member("cpu") };
        assert_eq!(
            (cpu.to_string().as_str(), cpu.typed_path().as_str()),
            ("spec.containers[0].limits.cpu", "spec.containers.limits")
        );
        let first = FieldPath { parent: None, step: Step::Item(3) };
        assert_eq!((first.to_string().as_str(), first.typed_path().as_str()), ("[3]", ""));
    }
}
