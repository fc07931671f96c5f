//! Sorts strict decoding errors in document order ([`in_document_order`]), as `sigs.k8s.io/json` reports the unknown
//! and duplicate fields of a typed object in one walk.
//!
//! The parser finds duplicate fields, and the walk through the types finds unknown fields. If a body has both, a second
//! walk through the body determines the order. The second walk visits only the paths of errors, and compares each name
//! only with the errors below the current path. The time is therefore linear in the size of the body at any depth.

use std::fmt;
use std::ops::Range;

use listwatch_json::JsonString;
use listwatch_meta::fuel;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::memory::JSON_BYTES_PER_UNIT;

const UNKNOWN: &str = "unknown field \"";
const DUPLICATE: &str = "duplicate field \"";

/// Sorts the strict decoding errors of a typed object by their position in the body. Removes duplicate-field errors at
/// or below an unknown field, because upstream does not decode unknown fields. Errors of a body that is not JSON stay
/// unchanged.
pub(super) fn in_document_order(body: &[u8], errors: Vec<String>) -> Vec<String> {
    let has = |kind: &str| errors.iter().any(|error| error.starts_with(kind));
    // Without fuel the answer is discarded, so the order does not matter.
    if !has(UNKNOWN) || !has(DUPLICATE) || !fuel::charge_bytes(body.len(), JSON_BYTES_PER_UNIT) {
        return errors;
    }
    let mut wanted: Vec<Wanted<'_>> = Vec::with_capacity(errors.len());
    for (at, error) in errors.iter().enumerate() {
        let (unknown, quoted) = match (error.strip_prefix(UNKNOWN), error.strip_prefix(DUPLICATE)) {
            (Some(path), _) => (true, path),
            (_, Some(path)) => (false, path),
            _ => return errors,
        };
        // One path with an escape leaves all errors unsorted.
        match quoted.strip_suffix('"') {
            Some(path) if !path.contains('\\') => wanted.push(Wanted { path, unknown, at }),
            _ => return errors,
        }
    }
    wanted.sort_unstable_by(|a, b| (a.path, !a.unknown).cmp(&(b.path, !b.unknown)));
    let mut found = Vec::with_capacity(wanted.len());
    let walk = Walk { wanted: &wanted, prefix: 0, found: &mut found };
    let mut reader = serde_json::Deserializer::from_slice(body);
    if walk.deserialize(&mut reader).is_err() {
        return errors;
    }
    let mut texts: Vec<Option<String>> = errors.iter().cloned().map(Some).collect();
    found.into_iter().filter_map(|at| texts[at].take()).collect()
}

/// A strict decoding error, with the path of its field.
struct Wanted<'a> {
    path: &'a str,
    unknown: bool,
    /// The index of the error in the input.
    at: usize,
}

impl<'a> Wanted<'a> {
    /// Returns the path after the first `prefix` bytes.
    fn behind(&self, prefix: usize) -> &'a [u8] {
        self.path.as_bytes().get(prefix..).unwrap_or_default()
    }
}

/// A walk through the body, at a path that is a prefix of all paths in `wanted`.
struct Walk<'a, 'w> {
    wanted: &'w [Wanted<'a>],
    /// The length of the path to the current value, in bytes.
    prefix: usize,
    /// The indices of the errors, in the order of the body.
    found: &'w mut Vec<usize>,
}

impl Walk<'_, '_> {
    /// Returns the errors whose paths continue with this step, and the new prefix length in bytes. For the step `app`,
    /// the result also includes paths with `app-x`, but these match no member below `app`.
    fn below(&self, separator: &str, step: &str) -> (Range<usize>, usize) {
        let separator = if self.prefix == 0 { "" } else { separator };
        let goes_on = || separator.bytes().chain(step.bytes());
        let first = self.wanted.partition_point(|wanted| wanted.behind(self.prefix).iter().copied().lt(goes_on()));
        let length = separator.len() + step.len();
        let count = self.wanted[first..].partition_point(|wanted| {
            let rest = wanted.behind(self.prefix);
            rest[..length.min(rest.len())].iter().copied().eq(goes_on())
        });
        (first..first + count, self.prefix + length)
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut seen = vec![false; self.wanted.len()];
        while let Some(name) = members.next_key::<JsonString>()? {
            let (range, prefix) = self.below(".", &name);
            let mut skip = range.is_empty();
            for at in range.clone().filter(|at| self.wanted[*at].path.len() == prefix) {
                let wanted = &self.wanted[at];
                if wanted.unknown || seen[at] {
                    self.found.push(wanted.at);
                }
                seen[at] = true;
                // Of the errors at one path, the unknown field sorts first and excludes duplicates.
                if wanted.unknown {
                    skip = true;
                    break;
                }
            }
            match skip {
                true => drop(members.next_value::<IgnoredAny>()?),
                false => {
                    let walk = Walk { wanted: &self.wanted[range], prefix, found: &mut *self.found };
                    members.next_value_seed(walk)?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for at in 0.. {
            let (range, prefix) = self.below("", &format!("[{at}]"));
            let walk = Walk { wanted: &self.wanted[range], prefix, found: &mut *self.found };
            if items.next_element_seed(walk)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hostile::cpu_time;

    fn check(body: &str, errors: &[&str], expected: &[&str]) {
        let text = |error: &&str| {
            let (kind, path) = error.split_once(' ').unwrap();
            format!("{kind} field {path:?}")
        };
        let found = in_document_order(body.as_bytes(), errors.iter().map(text).collect());
        assert_eq!(found, expected.iter().map(text).collect::<Vec<_>>(), "{body}");
    }

    #[test]
    fn strict_errors_are_sorted_in_document_order() {
        check(
            r#"{"spec":{"x":1,"replicas":2,"replicas":3}}"#,
            &["duplicate spec.replicas", "unknown spec.x"],
            &["unknown spec.x", "duplicate spec.replicas"],
        );
        check(
            r#"{"spec":{"replicas":2,"x":{"x":1},"replicas":3},"a":1,"metadata":{"name":"a","odd":1,"name":"b"}}"#,
            &[
                "duplicate spec.replicas",
                "duplicate metadata.name",
                "unknown metadata.odd",
                "unknown spec.x",
                "unknown a",
            ],
            &[
                "unknown spec.x",
                "duplicate spec.replicas",
                "unknown a",
                "unknown metadata.odd",
                "duplicate metadata.name",
            ],
        );
        check(
            r#"{"l":[{"a":1,"b":2},{"b":1,"b":2},{"c":1}],"m":{"a.b/c":"1","a":"1","a-b":"2","a.b/c":"2","a":"3"}}"#,
            &["duplicate l[1].b", "duplicate m.a.b/c", "duplicate m.a", "unknown l[0].a", "unknown l[2].c"],
            &["unknown l[0].a", "duplicate l[1].b", "unknown l[2].c", "duplicate m.a.b/c", "duplicate m.a"],
        );
    }

    #[test]
    fn duplicate_field_errors_inside_unknown_fields_are_dropped() {
        check(
            r#"{"a":{"b":1,"b":2},"a":{},"c":1,"c":2}"#,
            &["duplicate a.b", "duplicate a", "duplicate c", "unknown a"],
            &["unknown a", "duplicate c"],
        );
    }

    #[test]
    fn strict_errors_of_one_kind_or_of_yaml_bodies_keep_their_order() {
        let one = &["duplicate b", "duplicate a"];
        check(r#"{"a":1,"a":2,"b":1,"b":2}"#, one, one);
        let both = &["duplicate b", "unknown a"];
        check("a: 1\nb: 1\nb: 2\n", both, both);
    }

    #[test]
    fn sorting_strict_errors_takes_linear_time_at_any_depth() {
        // Many members are beside the deepest errors. The time for a member must not depend on the length of its path.
        let cpu_time_with = |name: &str| {
            let depth = 100;
            let mut body = format!("{{\"{name}\":").repeat(depth);
            body.push_str("{\"u\":1,\"d\":1,");
            (0..200_000).for_each(|_| body.push_str("\"x\":1,"));
            body.push_str("\"d\":2}");
            body.push_str(&"}".repeat(depth));
            let place = vec![name; depth].join(".");
            let errors = vec![format!("duplicate field \"{place}.d\""), format!("unknown field \"{place}.u\"")];
            let start = cpu_time();
            let found = in_document_order(body.as_bytes(), errors.clone());
            let took = cpu_time() - start;
            assert_eq!(found, [errors[1].clone(), errors[0].clone()]);
            took
        };
        let short = cpu_time_with("n");
        // Other load can disturb one measurement, but hardly three.
        let is_linear = (0..3).any(|_| cpu_time_with(&"n".repeat(1_000)) < 5 * short);
        assert!(is_linear, "the time for a member grows with the length of the path; {short:?} with a short path");
    }
}
