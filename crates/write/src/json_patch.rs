//! Applies JSON patches (RFC 6902) within limits, as kube-apiserver does.
//!
//! Kubernetes v1.36 uses `gopkg.in/evanphx/json-patch.v4` v4.13.0, which accepts more than the RFC:
//!
//! | operation | RFC 6902 | here |
//! |---|---|---|
//! | `replace` of an absent member | fails | adds the member |
//! | `test` of an absent member for null | fails | succeeds; kube-rs tests for finalizers this way |
//! | `copy` of an absent member | fails | copies null |
//! | index below zero | fails | counts from the end |
//! | index `01` or `+1` | fails | is index 1 |
//! | `add`, `remove`, `move`, `copy` of the whole document | succeed | fail |
//! | `~2` in a pointer | fails | is taken literally |
//! | text before the first `/` of a pointer | fails | is ignored |
//!
//! No operation nests an object deeper than [`OBJECT_DEPTH_MAX`] levels: the depth is checked before each operation.

use listwatch_json::{Map, Value};
use listwatch_meta::fuel;

use super::depth::{OBJECT_DEPTH_MAX, is_deeper};
use super::memory::{DOCUMENT_BYTES_MAX, bytes_of};

/// Maximum total size that all `copy` operations of one JSON patch may add, in bytes of memory. Larger patches fail
/// with 422 (`jsonpatch.AccumulatedCopySizeLimit`, which counts bytes of JSON).
const COPIED_BYTES_MAX: usize = DOCUMENT_BYTES_MAX;

/// Maximum number of values that all operations of one JSON patch may shift or visit. A more expensive patch fails with
/// 422. An insertion at the front of a list shifts all items of the list. A move to a deeper path visits all moved
/// values.
const TOUCHED_VALUES_MAX: usize = 100_000_000;

/// Number of values shifted or visited per unit of fuel.
const VALUES_PER_UNIT: u64 = 16;

/// Bytes of a tree copied per unit of fuel.
const BYTES_PER_UNIT: usize = 64;

/// The error of an operation that cannot be applied to the object. The client receives no details.
#[derive(Debug)]
pub(super) struct NotApplicable;

/// Applies the operations in order.
///
/// # Errors
/// [`NotApplicable`] when an operation fails. The caller must then discard `document`, which may be partly changed.
pub(super) fn apply(document: &mut Value, operations: Vec<Value>) -> Result<(), NotApplicable> {
    apply_numbered(document, operations).map_err(|_| NotApplicable)
}

/// Applies the operations in order, as [`apply`] does.
///
/// # Errors
/// The position of the operation that fails. The caller must then discard `document`.
pub(super) fn apply_numbered(document: &mut Value, operations: Vec<Value>) -> Result<(), usize> {
    let mut spent = Spent { copied: 0, touched: 0, charged: 0 };
    for (position, operation) in operations.into_iter().enumerate() {
        let Value::Object(operation) = operation else { return Err(position) };
        apply_one(document, operation, &mut spent).map_err(|NotApplicable| position)?;
    }
    Ok(())
}

/// The cost of the operations so far.
struct Spent {
    copied: usize,
    touched: usize,
    /// The number of touched values that were already charged as fuel.
    charged: usize,
}

impl Spent {
    fn touch(&mut self, values: usize) -> Result<(), NotApplicable> {
        self.touched += values;
        let goes_on = fuel::charge((self.touched - self.charged) as u64 / VALUES_PER_UNIT);
        self.charged = self.touched;
        if self.touched > TOUCHED_VALUES_MAX || !goes_on { Err(NotApplicable) } else { Ok(()) }
    }

    fn copy(&mut self, bytes: usize) -> Result<(), NotApplicable> {
        self.copied += bytes;
        if self.copied > COPIED_BYTES_MAX || !fuel::charge_bytes(bytes, BYTES_PER_UNIT) {
            Err(NotApplicable)
        } else {
            Ok(())
        }
    }

    /// Rejects a value that would nest deeper than the limit, so that dropping a tree never overflows the stack.
    fn check_depth(&mut self, at: &Pointer, value: &Value) -> Result<(), NotApplicable> {
        let fits = OBJECT_DEPTH_MAX
            .checked_sub(at.steps.len())
            .is_some_and(|levels| !is_deeper(value, levels, &mut self.touched));
        if fits { self.touch(0) } else { Err(NotApplicable) }
    }
}

fn apply_one(document: &mut Value, mut operation: Map, spent: &mut Spent) -> Result<(), NotApplicable> {
    let path = Pointer::of(operation.get("path"))?;
    let from = || Pointer::of(operation.get("from"));
    match operation.get("op").and_then(Value::as_str) {
        Some("add") => {
            let value = operation.shift_remove("value").unwrap_or_default();
            spent.check_depth(&path, &value)?;
            add(document, &path, value, spent)
        }
        Some("remove") => take(document, &path, spent).map(drop),
        Some("replace") => {
            let value = operation.shift_remove("value").unwrap_or_default();
            spent.check_depth(&path, &value)?;
            replace(document, &path, value)
        }
        Some("move") => {
            let from = from()?;
            // A value that moves up, or stays on the same level, cannot exceed the depth limit.
            if path.steps.len() > from.steps.len() {
                let (holder, name) = from.holder(document)?;
                spent.check_depth(&path, get(holder, name)?.ok_or(NotApplicable)?)?;
            }
            let value = take(document, &from, spent)?;
            add(document, &path, value, spent)
        }
        Some("copy") => {
            let from = from()?;
            let (holder, name) = from.holder(document)?;
            let value = get(holder, name)?;
            spent.copy(value.map_or(0, bytes_of))?;
            let value = value.cloned().unwrap_or_default();
            spent.check_depth(&path, &value)?;
            add(document, &path, value, spent)
        }
        Some("test") => {
            let found = if path.is_whole {
                Some(&*document)
            } else {
                let (holder, name) = path.holder(document)?;
                get(holder, name)?
            };
            let holds = match (found.filter(|found| !found.is_null()), operation.get("value")) {
                (None, wanted) => wanted.is_none_or(Value::is_null),
                (Some(found), wanted) => wanted == Some(found),
            };
            if holds { Ok(()) } else { Err(NotApplicable) }
        }
        _ => Err(NotApplicable),
    }
}

/// The parsed JSON pointer (RFC 6901) of an operation.
struct Pointer {
    /// Whether the pointer is `""`, which means the whole document.
    is_whole: bool,
    steps: Vec<String>,
}

impl Pointer {
    fn of(text: Option<&Value>) -> Result<Self, NotApplicable> {
        let text = text.and_then(Value::as_str).ok_or(NotApplicable)?;
        let steps = text.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        Ok(Pointer { is_whole: text.is_empty(), steps })
    }

    /// Returns the list or object that contains the target, and the key of the target in that container.
    fn holder<'a>(&self, document: &'a mut Value) -> Result<(&'a mut Value, &str), NotApplicable> {
        let (name, steps) = self.steps.split_last().ok_or(NotApplicable)?;
        let mut holder = document;
        for step in steps {
            holder = match holder {
                Value::Object(members) => members.get_mut(step),
                Value::Array(items) => index(step, items.len()).and_then(|at| items.get_mut(at)),
                _ => None,
            }
            .ok_or(NotApplicable)?;
        }
        Ok((holder, name))
    }
}

/// Parses a step of a pointer as an index into a list of `places` items. A negative index counts from the end.
fn index(step: &str, places: usize) -> Option<usize> {
    let at: i64 = step.parse().ok()?;
    let from_the_end = usize::try_from(at.unsigned_abs()).ok()?;
    let at = if at < 0 { places.checked_sub(from_the_end)? } else { from_the_end };
    (at < places).then_some(at)
}

/// Returns a member of an object or an item of a list; `None` when an object lacks the member.
fn get<'a>(holder: &'a Value, name: &str) -> Result<Option<&'a Value>, NotApplicable> {
    match holder {
        Value::Object(members) => Ok(members.get(name)),
        Value::Array(items) => index(name, items.len()).map(|at| items.get(at)).ok_or(NotApplicable),
        _ => Err(NotApplicable),
    }
}

fn add(document: &mut Value, path: &Pointer, value: Value, spent: &mut Spent) -> Result<(), NotApplicable> {
    match path.holder(document)? {
        (Value::Object(members), name) => {
            members.insert(name, value);
        }
        (Value::Array(items), "-") => items.push(value),
        (Value::Array(items), step) => {
            let at = index(step, items.len() + 1).ok_or(NotApplicable)?;
            spent.touch(items.len() - at)?;
            items.insert(at, value);
        }
        _ => return Err(NotApplicable),
    }
    Ok(())
}

fn take(document: &mut Value, path: &Pointer, spent: &mut Spent) -> Result<Value, NotApplicable> {
    match path.holder(document)? {
        (Value::Object(members), name) => {
            spent.touch(members.len())?;
            members.shift_remove(name).ok_or(NotApplicable)
        }
        (Value::Array(items), step) => {
            spent.touch(items.len())?;
            Ok(items.remove(index(step, items.len()).ok_or(NotApplicable)?))
        }
        _ => Err(NotApplicable),
    }
}

fn replace(document: &mut Value, path: &Pointer, value: Value) -> Result<(), NotApplicable> {
    if path.is_whole {
        if !value.is_object() && !value.is_array() {
            return Err(NotApplicable);
        }
        *document = value;
        return Ok(());
    }
    match path.holder(document)? {
        (Value::Object(members), name) => {
            members.insert(name, value);
        }
        (Value::Array(items), step) => {
            let at = index(step, items.len()).ok_or(NotApplicable)?;
            items[at] = value;
        }
        _ => return Err(NotApplicable),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Compares random operations with a model, which builds a new tree for each operation.

    use listwatch_json::json;
    use proptest::prelude::*;

    use super::*;

    /// Returns the members of an object, or the items of a list, as pairs of name and value in order.
    fn parts(tree: &Value) -> Option<Vec<(String, Value)>> {
        match tree {
            Value::Object(members) => Some(members.iter().map(|(name, value)| (name.into(), value.clone())).collect()),
            Value::Array(items) => {
                Some(items.iter().enumerate().map(|(at, item)| (at.to_string(), item.clone())).collect())
            }
            _ => None,
        }
    }

    fn of_parts(like: &Value, parts: Vec<(String, Value)>) -> Value {
        match like {
            Value::Object(_) => Value::Object(parts.into_iter().collect()),
            _ => parts.into_iter().map(|(_, value)| value).collect(),
        }
    }

    /// Normalizes a step to a name that [`parts`] returns. If `beyond` is set, the index after the last item is also
    /// valid.
    fn name_of(tree: &Value, step: &str, beyond: bool) -> Option<String> {
        let Value::Array(items) = tree else { return Some(step.to_owned()) };
        let places = i64::try_from(items.len()).ok()? + i64::from(beyond);
        let at: i64 = step.parse().ok()?;
        (-places..places).contains(&at).then(|| at.rem_euclid(places).to_string())
    }

    fn steps(pointer: &str) -> Vec<String> {
        pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect()
    }

    /// Returns a copy of the tree in which `make` rebuilds the container of the last step.
    fn remade(tree: &Value, path: &[String], make: &dyn Fn(&Value, &str) -> Option<Value>) -> Option<Value> {
        let (first, rest) = path.split_first()?;
        if rest.is_empty() {
            parts(tree)?;
            return make(tree, first);
        }
        let name = name_of(tree, first, false)?;
        let mut found = parts(tree)?;
        let part = found.iter_mut().find(|(known, _)| *known == name)?;
        part.1 = remade(&part.1, rest, make)?;
        Some(of_parts(tree, found))
    }

    fn with(tree: &Value, path: &[String], value: &Value) -> Option<Value> {
        remade(tree, path, &|holder, step| {
            let mut found = parts(holder)?;
            match holder {
                Value::Array(_) if step == "-" => found.push((String::new(), value.clone())),
                Value::Array(_) => {
                    let at: usize = name_of(holder, step, true)?.parse().ok()?;
                    let behind = found.split_off(at);
                    found.push((String::new(), value.clone()));
                    found.extend(behind);
                }
                _ => {
                    found.retain(|(name, _)| name != step);
                    found.push((step.to_owned(), value.clone()));
                }
            }
            Some(of_parts(holder, found))
        })
    }

    fn without(tree: &Value, path: &[String]) -> Option<Value> {
        remade(tree, path, &|holder, step| {
            let name = name_of(holder, step, false)?;
            let (gone, left): (Vec<_>, Vec<_>) = parts(holder)?.into_iter().partition(|(known, _)| *known == name);
            (!gone.is_empty()).then(|| of_parts(holder, left))
        })
    }

    /// Finds the value at a path. `Some(None)` means that an object lacks the member.
    fn found(tree: &Value, path: &[String]) -> Option<Option<Value>> {
        let mut answer = None;
        let looked = std::cell::RefCell::new(&mut answer);
        remade(tree, path, &|holder, step| {
            let name = name_of(holder, step, false)?;
            let part = parts(holder)?.into_iter().find(|(known, _)| *known == name);
            **looked.borrow_mut() = Some(part.map(|(_, value)| value));
            Some(holder.clone())
        })?;
        answer
    }

    fn model(tree: &Value, operation: &Value) -> Option<Value> {
        let text = |name: &str| operation.get(name).and_then(Value::as_str);
        let (whole, path) = (text("path")?.is_empty(), steps(text("path")?));
        let value = operation.get("value").cloned().unwrap_or_default();
        match text("op")? {
            "add" => with(tree, &path, &value),
            "remove" => without(tree, &path),
            "replace" if whole => (value.is_object() || value.is_array()).then_some(value),
            // An object may lack the replaced member; a list must have the item.
            "replace" => remade(tree, &path, &|holder, step| {
                let step = [name_of(holder, step, false)?];
                with(&if holder.is_array() { without(holder, &step)? } else { holder.clone() }, &step, &value)
            }),
            "move" => {
                let from = steps(text("from")?);
                with(&without(tree, &from)?, &path, &found(tree, &from)??)
            }
            "copy" => with(tree, &path, &found(tree, &steps(text("from")?))?.unwrap_or_default()),
            "test" if whole => (*tree == value).then(|| tree.clone()),
            "test" => (found(tree, &path)?.unwrap_or_default() == value).then(|| tree.clone()),
            _ => None,
        }
    }

    fn any_tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![1 => Just(Value::Null), 4 => (0..3).prop_map(Value::from), 2 => Just(json!("x"))];
        leaf.prop_recursive(4, 24, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                any_members(inner).prop_map(Value::Object),
            ]
        })
    }

    fn any_members(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Map> {
        let name = prop_oneof![3 => Just("a"), 3 => Just("b"), 1 => Just("x/y"), 1 => Just("m~n"), 1 => Just("0")];
        prop::collection::vec((name.prop_map(str::to_owned), inner), 1..5)
            .prop_map(|members| members.into_iter().collect())
    }

    fn any_pointer() -> impl Strategy<Value = String> {
        let step = prop_oneof![
            6 => prop_oneof![Just("a"), Just("b")],
            4 => prop_oneof![Just("0"), Just("1"), Just("-")],
            2 => prop_oneof![Just("x~1y"), Just("m~0n"), Just("-1"), Just("2")],
            1 => prop_oneof![Just("+1"), Just("01"), Just("-2"), Just("~2"), Just("c"), Just("")],
        ];
        let steps = prop::collection::vec(step, 0..4);
        steps.prop_map(|steps| steps.into_iter().map(|step| format!("/{step}")).collect())
    }

    fn any_operation() -> impl Strategy<Value = Value> {
        let op = prop_oneof![Just("add"), Just("remove"), Just("replace"), Just("move"), Just("copy"), Just("test")];
        (op, any_pointer(), any_pointer(), prop::option::weighted(0.9, any_tree())).prop_map(
            |(op, path, from, value)| {
                let mut operation = json!({"op": op, "path": path});
                if matches!(op, "move" | "copy") {
                    operation["from"] = json!(from);
                } else if let Some(value) = value.filter(|_| op != "remove") {
                    operation["value"] = value;
                }
                operation
            },
        )
    }

    proptest! {
        /// Compares with the `json-patch` crate, which follows the RFC.
        #[test]
        fn json_patch_operation_valid_under_rfc_6902_matches_the_json_patch_crate(
            tree in any_members(any_tree()).prop_map(Value::Object),
            operation in any_operation(),
        ) {
            let whole = |name: &str| operation.get(name).is_some_and(|pointer| pointer == "");
            let refused_here = operation["op"] != "test" && operation["op"] != "replace" && (whole("path") || whole("from"));
            let operations = json!([operation]);
            let mut expected = serde_json::Value::from(tree.clone());
            let Ok(strict) = listwatch_json::from_value::<::json_patch::Patch>(operations.clone()) else { return Ok(()) };
            if refused_here || ::json_patch::patch(&mut expected, &strict).is_err() || !expected.is_object() {
                return Ok(());
            }
            let mut found = tree;
            prop_assert!(apply(&mut found, operations.as_array().cloned().unwrap_or_default()).is_ok());
            prop_assert_eq!(found, Value::from(expected), "{}", operations);
        }

        #[test]
        fn random_json_patch_operations_match_the_model(
            tree in any_members(any_tree()).prop_map(Value::Object),
            operations in prop::collection::vec(any_operation(), 1..6),
        ) {
            // Apply each operation alone, to the result of the successful ones before it.
            let (mut patched, mut applied) = (tree.clone(), Vec::new());
            for operation in operations {
                let expected = model(&patched, &operation);
                let mut found = patched.clone();
                let verdict = apply(&mut found, vec![operation.clone()]);
                prop_assert_eq!(verdict.is_ok().then_some(&found), expected.as_ref(), "{} on {}", &operation, &patched);
                if verdict.is_ok() {
                    patched = found;
                    applied.push(operation);
                }
            }
            // Apply all successful operations together.
            let mut all = tree;
            prop_assert!(apply(&mut all, applied).is_ok());
            prop_assert_eq!(all, patched);
        }
    }
}
