//! Registry paths of Kubernetes as types: [`Key`] of one object and [`KeyRange`] of a collection.
//!
//! Layout (what `etcdctl get --prefix /registry/` shows): `<store prefix>/<resource prefix>/`
//! then `<namespace>/<name>` or, for cluster-scoped resources, `<name>`. A `Key` holds the part
//! after the store prefix and always begins with `/`.

use std::fmt;
use std::sync::Arc;

/// The path of one object, relative to the store's prefix: `/pods/default/web`.
///
/// A key is cheap to clone. Keys are ordered by bytes, as every list is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The key of an object below a resource prefix such as `pods`, `services/specs` or
    /// `stable.example.com/crontabs`; `namespace` is `None` for cluster-scoped resources.
    ///
    /// # Errors
    /// [`InvalidKey`] when an element is empty, is `.` or `..`, or contains a `/` or a NUL byte.
    /// Such an element would address another directory (`pkg/storage` `PrepareKey`).
    pub fn new(resource_prefix: &str, namespace: Option<&str>, name: &str) -> Result<Self, InvalidKey> {
        let mut path = String::with_capacity(3 + resource_prefix.len() + namespace.map_or(0, str::len) + name.len());
        path.push('/');
        path.push_str(resource_prefix);
        for part in namespace.into_iter().chain([name]) {
            check_part(part)?;
            path.push('/');
            path.push_str(part);
        }
        Ok(Key(path.into()))
    }

    /// Parses a whole path, as the store returns it.
    ///
    /// # Errors
    /// [`InvalidKey`] when the path does not begin with `/` or has an empty, `.` or `..` element.
    pub fn from_path(path: &str) -> Result<Self, InvalidKey> {
        let Some(rest) = path.strip_prefix('/') else {
            return Err(InvalidKey { part: path.to_owned() });
        };
        for part in rest.split('/') {
            check_part(part)?;
        }
        Ok(Key(path.into()))
    }

    /// The whole path, beginning with `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last element: the object's name.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The element before the last one: the namespace of an object of a namespaced resource. The
    /// result has no meaning for cluster-scoped resources, so the caller checks the scope.
    pub fn namespace(&self) -> &str {
        self.0.rsplit('/').nth(1).unwrap_or_default()
    }
}

fn check_part(part: &str) -> Result<(), InvalidKey> {
    if part.is_empty() || part == "." || part == ".." || part.contains('/') || part.contains('\0') {
        return Err(InvalidKey { part: part.to_owned() });
    }
    Ok(())
}

impl std::borrow::Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The error for a path element that would address another directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid key element {part:?}")]
pub struct InvalidKey {
    /// The rejected element.
    pub part: String,
}

/// A contiguous set of keys: a whole resource, one namespace of it, or one object.
///
/// The range is half open: `start <= key < end`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    start: Arc<str>,
    end: Arc<str>,
}

impl KeyRange {
    /// Every object of a resource: all keys below `/<resource_prefix>/`.
    pub fn resource(resource_prefix: &str) -> Self {
        Self::below(&format!("/{resource_prefix}/"))
    }

    /// Every object of a resource in one namespace. The trailing `/` keeps `a` from matching `ab`.
    pub fn namespace(resource_prefix: &str, namespace: &str) -> Self {
        Self::below(&format!("/{resource_prefix}/{namespace}/"))
    }

    /// Exactly one key.
    pub fn single(key: &Key) -> Self {
        KeyRange { start: key.0.clone(), end: format!("{key}\0").into() }
    }

    /// Every key with this prefix, which must end in `/`.
    ///
    /// # Panics
    /// When `prefix` does not end in `/`, because the range would include sibling keys.
    pub fn below(prefix: &str) -> Self {
        let stem = prefix.strip_suffix('/').expect("a key prefix ends in '/'");
        // '0' is the byte after '/', so this is the first key that is not below the prefix.
        KeyRange { start: prefix.into(), end: format!("{stem}0").into() }
    }

    /// The same range from `start` (inclusive) on, if `start` is after the range's own start. A
    /// paged list resumes with it.
    #[must_use]
    pub fn starting_at(&self, start: &str) -> Self {
        if start <= &*self.start {
            return self.clone();
        }
        KeyRange { start: start.into(), end: self.end.clone() }
    }

    /// The first key that may be in the range.
    pub fn start(&self) -> &str {
        &self.start
    }

    /// The first key after the range.
    pub fn end(&self) -> &str {
        &self.end
    }

    /// Whether this key is in the range.
    pub fn contains(&self, key: &str) -> bool {
        &*self.start <= key && key < &*self.end
    }

    /// True when no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

impl fmt::Debug for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}, {:?})", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_range_excludes_namespaces_with_the_same_prefix() {
        let range = KeyRange::namespace("pods", "a");
        let key = |ns, name| Key::new("pods", Some(ns), name).unwrap();
        assert!(range.contains(key("a", "x").as_str()));
        assert!(range.contains(key("a", "\u{10ffff}").as_str()));
        for (ns, name) in [("ab", "x"), ("a-b", "x"), ("b", "x"), ("0", "x")] {
            assert!(!range.contains(key(ns, name).as_str()), "{ns}/{name}");
        }
    }

    #[test]
    fn key_rejects_empty_dotted_and_slashed_elements() {
        for bad in ["", ".", "..", "a/b", "a\0"] {
            assert!(Key::new("pods", Some("ns"), bad).is_err(), "{bad:?}");
            assert!(Key::new("pods", Some(bad), "x").is_err(), "{bad:?}");
        }
        let key = Key::new("services/specs", Some("ns"), "web").unwrap();
        assert_eq!(key.as_str(), "/services/specs/ns/web");
        assert_eq!((key.namespace(), key.name()), ("ns", "web"));
        assert_eq!(Key::from_path(key.as_str()), Ok(key));
    }

    #[test]
    fn single_range_contains_only_its_key() {
        let key = Key::new("nodes", None, "n1").unwrap();
        let range = KeyRange::single(&key);
        assert!(range.contains("/nodes/n1"));
        assert!(!range.contains("/nodes/n11"));
        assert!(!range.contains("/nodes/n1/x"));
    }
}
