//! [`changes_an_object`]: detects from the JSON text whether a write changes an object, without parsing.

/// The start of the managed fields in compact JSON. Quotes inside a string are escaped, so the text only matches a
/// member.
const MANAGED_FIELDS: &[u8] = b"\"managedFields\":[";
const RESOURCE_VERSION: &[u8] = b"\"resourceVersion\":\"";

/// Whether two objects differ outside the resource version and the managed fields. Both must be compact JSON from the
/// same encoder. False does not mean that nothing changes: the managed fields may differ in more than their times.
pub(super) fn changes_an_object(new: &[u8], stored: &[u8]) -> bool {
    let ((new_before, new_after), (before, after)) = (around_managed_fields(new), around_managed_fields(stored));
    new_after != after || (new_before != before && !equal_but_version(new_before, before))
}

/// Returns the text before and after the value of the first `managedFields`. The second part is empty if the text has
/// no complete `managedFields`.
fn around_managed_fields(json: &[u8]) -> (&[u8], &[u8]) {
    let Some(at) = find(json, MANAGED_FIELDS) else { return (json, b"") };
    let (before, list) = json.split_at(at + MANAGED_FIELDS.len() - 1);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (position, byte) in list.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (before, &list[position + 1..]);
        }
    }
    (json, b"")
}

/// Whether `stored` equals `new` except for an additional member `resourceVersion`.
fn equal_but_version(new: &[u8], stored: &[u8]) -> bool {
    let Some(at) = find(stored, RESOURCE_VERSION) else { return false };
    let value = at + RESOURCE_VERSION.len();
    let Some(end) = stored[value..].iter().position(|byte| *byte == b'"') else { return false };
    let rest = &stored[value + end + 1..];
    // A comma separates the member from the next one.
    let rest = rest.strip_prefix(b",").unwrap_or(rest);
    new.len() == at + rest.len() && new.starts_with(&stored[..at]) && new.ends_with(rest)
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, part)
}

#[cfg(test)]
mod tests {
    use super::changes_an_object;

    fn object(version: &str, label: &str, time: &str, status: &str) -> String {
        format!(
            r#"{{"kind":"Pod","metadata":{{"name":"a",{version}"labels":{{"a":"{label}"}},"managedFields":[{{"manager":"k]\"","time":"{time}","fieldsV1":{{"f:a":{{}}}}}}]}},"status":{{"phase":"{status}"}}}}"#
        )
    }

    #[test]
    fn changes_an_object_ignores_only_resource_version_and_managed_fields() {
        let stored = object(r#""resourceVersion":"7","#, "x", "1", "Running");
        let changes = |new: &str| changes_an_object(new.as_bytes(), stored.as_bytes());
        assert!(!changes(&object("", "x", "1", "Running")), "the same object");
        assert!(!changes(&stored), "the same text");
        assert!(!changes(&object("", "x", "2", "Running")), "only a time of the managed fields differs");
        assert!(changes(&object("", "x", "1", "Failed")), "the status differs");
        assert!(changes(&object("", "x", "2", "Failed")), "the status and a time differ");
        assert!(changes(&object("", "y", "1", "Running")), "a label differs");
        assert!(changes(&object(r#""generation":2,"#, "x", "1", "Running")), "a member is new");
    }

    #[test]
    fn changes_an_object_compares_objects_without_managed_fields_completely() {
        let (old, new) = (r#"{"metadata":{"resourceVersion":"7"},"a":1}"#, r#"{"metadata":{},"a":1}"#);
        assert!(!changes_an_object(new.as_bytes(), old.as_bytes()));
        assert!(changes_an_object(br#"{"metadata":{},"a":2}"#, old.as_bytes()));
        assert!(changes_an_object(br#"{"metadata":{"managedFields":[]},"a":1}"#, old.as_bytes()));
        // An unfinished text is no object; it must not be taken for an equal one.
        assert!(changes_an_object(br#"{"metadata":{"managedFields":[{"#, old.as_bytes()));
    }
}
