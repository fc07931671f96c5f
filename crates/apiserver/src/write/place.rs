//! Where a value stands in a body, as decoders name it: a list from the inside out that lives on the stack.

use std::fmt;

/// A step from the outermost object to a value, and the steps before it.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) parent: Option<&'a Place<'a>>,
    pub(super) step: Step<'a>,
}

/// One step.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    /// A field of a type, or a member of what has none.
    Field(&'a str),
    /// A member of a map.
    Member(&'a str),
    /// An item of a list.
    Item(usize),
}

impl Place<'_> {
    /// `spec.containers.name`, as the decoder names the place of a wrong type: by fields alone.
    pub(super) fn of_fields(&self) -> String {
        let mut out = String::new();
        // Writing into a text does not fail.
        let _ = self.write(false, &mut out);
        out
    }

    /// Returns whether anything was written.
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

/// `spec.containers[0].name`, as the strict decoder names a field.
impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(true, f).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_two_names() {
        let spec = Place { parent: None, step: Step::Field("spec") };
        let list = Place { parent: Some(&spec), step: Step::Field("containers") };
        let item = Place { parent: Some(&list), step: Step::Item(0) };
        let map = Place { parent: Some(&item), step: Step::Field("limits") };
        let cpu = Place { parent: Some(&map), step: Step::Member("cpu") };
        assert_eq!(
            (cpu.to_string().as_str(), cpu.of_fields().as_str()),
            ("spec.containers[0].limits.cpu", "spec.containers.limits")
        );
        let first = Place { parent: None, step: Step::Item(3) };
        assert_eq!((first.to_string().as_str(), first.of_fields().as_str()), ("[3]", ""));
    }
}
