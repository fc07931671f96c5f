//! The label selector of a filter in compact form: [`LabelConditions`], one condition per label, and the labels of an
//! object that several filters examine ([`SortedLabels`]).
//!
//! A client chooses the number of requirements, and an event is matched with many watchers under one lock. So an object's
//! labels are read once, whatever the number of requirements, and each label is looked up in the sorted conditions:
//!
//! ```text
//!  requirements   !a, b=x, b!=y, c in (p,q)   ──merge──▶   a: absent │ b: x, not y │ c: p, q      (sorted)
//!                                                              ▲ binary search
//!  object         {"b":"x","c":"q","z":"1"}   ── one walk ─────┘
//! ```

use std::borrow::Cow;
use std::collections::BTreeSet;

use listwatch_meta::selector::{LabelOperator, LabelRequirement};
use listwatch_meta::{LabelSelector, Object};

/// The number of conditions up to which the values of one object are collected on the stack.
const CONDITIONS_ON_STACK: usize = 8;

/// The length up to which a list is searched from its start; a longer list is searched by halves.
const SEARCHED_LINEARLY: usize = 8;

/// The conditions of a label selector, at most one per label.
#[derive(Debug)]
pub(crate) struct LabelConditions {
    /// Sorted by label.
    conditions: Box<[LabelCondition]>,
    /// The number of conditions that an absent label does not meet.
    required: usize,
}

/// The condition on one label. There may be one per watcher and label, and a `BTreeSet` for a single value takes
/// hundreds of bytes.
#[derive(Debug)]
struct LabelCondition {
    label: Box<str>,
    operators: Operators,
}

#[derive(Debug)]
enum Operators {
    One(Operator),
    /// All of them, at most one of each kind.
    All(Box<[Operator]>),
}

#[derive(Debug)]
enum Operator {
    /// One of these values, which are sorted.
    In(Box<[Box<str>]>),
    /// None of these values, which are sorted.
    NotIn(Box<[Box<str>]>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

impl LabelConditions {
    pub(crate) fn new(selector: &LabelSelector) -> Self {
        let mut requirements: Vec<&LabelRequirement> = selector.requirements().iter().collect();
        requirements.sort_by_key(|requirement| requirement.key());
        let of_labels = requirements.chunk_by(|one, other| one.key() == other.key());
        let conditions: Box<[LabelCondition]> = of_labels.filter_map(LabelCondition::new).collect();
        let required = conditions.iter().filter(|condition| condition.requires_label()).count();
        LabelConditions { conditions, required }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Whether an object matches. The object's labels are read once.
    pub(crate) fn match_object(&self, object: &Object) -> bool {
        match &*self.conditions {
            [] => true,
            // The most frequent selectors have one requirement and need no list of values.
            [condition] => condition.is_met_by(object.label(&condition.label).as_deref()),
            conditions if conditions.len() <= CONDITIONS_ON_STACK => {
                let mut values = [const { None::<Cow<'_, str>> }; CONDITIONS_ON_STACK];
                object.find_labels(
                    |name| self.position(name),
                    |position, value| {
                        // Of a duplicate key the last one counts.
                        if let Some(place) = values.get_mut(position) {
                            *place = Some(value);
                        }
                    },
                );
                conditions.iter().zip(&values).all(|(condition, value)| condition.is_met_by(value.as_deref()))
            }
            _ => self.match_object_many(object),
        }
    }

    /// Collects the values of the labels that the object has. The work depends on the labels, not on the conditions.
    fn match_object_many(&self, object: &Object) -> bool {
        let mut found = Vec::new();
        object.find_labels(|name| self.position(name), |position, value| found.push((position, value)));
        found.sort_by_key(|(position, _)| *position); // stable, so a duplicate key stays last
        keep_last_of_duplicates(&mut found);
        self.are_met_by_found(found.iter().map(|(position, value)| (*position, &**value)))
    }

    /// Whether an object with these labels matches.
    #[inline]
    pub(crate) fn match_labels(&self, labels: &SortedLabels<'_>) -> bool {
        // Most selectors have few conditions, whose lookups are bounded without a look at the number of labels.
        if self.conditions.len() <= SEARCHED_LINEARLY {
            return self.conditions.iter().all(|condition| condition.is_met_by(labels.get(&condition.label)));
        }
        self.match_many(labels)
    }

    fn match_many(&self, labels: &SortedLabels<'_>) -> bool {
        if self.required > labels.0.len() {
            return false;
        }
        if self.conditions.len() <= labels.0.len() {
            return self.conditions.iter().all(|condition| condition.is_met_by(labels.get(&condition.label)));
        }
        // More conditions than labels: the work depends on the labels.
        self.are_met_by_found(
            labels.0.iter().filter_map(|(name, value)| self.position(name).map(|position| (position, &**value))),
        )
    }

    /// Whether the conditions are met by these values and by the absence of all other labels. A position occurs once.
    fn are_met_by_found<'v>(&self, found: impl Iterator<Item = (usize, &'v str)>) -> bool {
        let mut met = 0;
        for (position, value) in found {
            let Some(condition) = self.conditions.get(position) else { continue };
            if !condition.is_met_by(Some(value)) {
                return false;
            }
            met += usize::from(condition.requires_label());
        }
        met == self.required
    }

    /// The position of the condition on a label.
    fn position(&self, name: &[u8]) -> Option<usize> {
        if self.conditions.len() <= SEARCHED_LINEARLY {
            return self.conditions.iter().position(|condition| condition.label.as_bytes() == name);
        }
        self.conditions.binary_search_by(|condition| condition.label.as_bytes().cmp(name)).ok()
    }
}

impl LabelCondition {
    /// Joins all requirements on one label; `None` without a requirement.
    fn new(requirements: &[&LabelRequirement]) -> Option<Self> {
        let label = requirements.first()?.key().into();
        let (mut within, mut without) = (None::<BTreeSet<&str>>, BTreeSet::new());
        let (mut above, mut below) = (None::<i64>, None::<i64>);
        let (mut exists, mut is_absent) = (false, false);
        for requirement in requirements {
            match requirement.operator() {
                LabelOperator::In(values) => match &mut within {
                    None => within = Some(values.iter().map(String::as_str).collect()),
                    Some(within) => within.retain(|value| values.contains(*value)),
                },
                LabelOperator::NotIn(values) => without.extend(values.iter().map(String::as_str)),
                LabelOperator::Exists => exists = true,
                LabelOperator::DoesNotExist => is_absent = true,
                LabelOperator::GreaterThan(bound) => above = above.max(Some(*bound)),
                LabelOperator::LessThan(bound) => below = Some(below.map_or(*bound, |below| below.min(*bound))),
            }
        }
        let packed = |values: BTreeSet<&str>| values.into_iter().map(Box::from).collect();
        let not_in = requirements.iter().any(|requirement| matches!(requirement.operator(), LabelOperator::NotIn(_)));
        let operators = [
            within.map(|values| Operator::In(packed(values))),
            not_in.then(|| Operator::NotIn(packed(without))),
            exists.then_some(Operator::Exists),
            is_absent.then_some(Operator::DoesNotExist),
            above.map(Operator::GreaterThan),
            below.map(Operator::LessThan),
        ];
        let mut operators: Vec<Operator> = operators.into_iter().flatten().collect();
        let operators = match (operators.pop(), operators.is_empty()) {
            (Some(one), true) => Operators::One(one),
            (last, _) => Operators::All(operators.into_iter().chain(last).collect()),
        };
        Some(LabelCondition { label, operators })
    }

    #[inline]
    fn is_met_by(&self, value: Option<&str>) -> bool {
        #[cfg(test)]
        tests::EVALUATED.with(|evaluated| evaluated.set(evaluated.get() + 1));
        match &self.operators {
            Operators::One(operator) => operator.matches(value),
            Operators::All(operators) => operators.iter().all(|operator| operator.matches(value)),
        }
    }

    /// Whether an absent label does not meet the condition.
    fn requires_label(&self) -> bool {
        let requires = |operator: &Operator| !matches!(operator, Operator::NotIn(_) | Operator::DoesNotExist);
        match &self.operators {
            Operators::One(operator) => requires(operator),
            Operators::All(operators) => operators.iter().any(requires),
        }
    }
}

impl Operator {
    #[inline]
    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Operator::In(values) => value.is_some_and(|value| is_among(values, value)),
            Operator::NotIn(values) => value.is_none_or(|value| !is_among(values, value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Operator::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// Whether a value is in a sorted list.
#[inline]
pub(crate) fn is_among(values: &[Box<str>], value: &str) -> bool {
    if let [known] = values {
        return **known == *value;
    }
    if values.len() <= SEARCHED_LINEARLY {
        return values.iter().any(|known| **known == *value);
    }
    values.binary_search_by(|known| (**known).cmp(value)).is_ok()
}

/// The labels of one object, each once and sorted by name.
#[derive(Debug, Default)]
pub(crate) struct SortedLabels<'o>(Vec<(&'o [u8], Cow<'o, str>)>);

impl<'o> SortedLabels<'o> {
    pub(crate) fn new(object: &'o Object) -> Self {
        let mut labels = Vec::new();
        object.for_each_label(|name, value| labels.push((name, value)));
        labels.sort_by_key(|(name, _)| *name); // stable, so a duplicate key stays last
        keep_last_of_duplicates(&mut labels);
        SortedLabels(labels)
    }

    #[inline]
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let name = name.as_bytes();
        let found = if self.0.len() <= SEARCHED_LINEARLY {
            self.0.iter().find(|(known, _)| *known == name)
        } else {
            let position = self.0.binary_search_by_key(&name, |(known, _)| *known).ok();
            position.and_then(|position| self.0.get(position))
        };
        found.map(|(_, value)| &**value)
    }
}

/// Of adjacent entries with equal keys, keeps the last one.
fn keep_last_of_duplicates<K: PartialEq, V>(entries: &mut Vec<(K, V)>) {
    entries.dedup_by(|later, kept| {
        let is_duplicate = later.0 == kept.0;
        if is_duplicate {
            std::mem::swap(later, kept);
        }
        is_duplicate
    });
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use listwatch_meta::{Change, Key, ObjectShape, Revision};
    use proptest::prelude::*;

    use super::*;

    thread_local! {
        /// The number of conditions that this thread has evaluated.
        pub(super) static EVALUATED: Cell<usize> = const { Cell::new(0) };
    }

    fn object(labels: &[(String, String)]) -> Object {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name:?}:{value:?}")).collect();
        let json = format!(r#"{{"metadata":{{"name":"x","labels":{{{}}}}}}}"#, labels.join(","));
        let key = Key::new("pods", Some("a"), "x").unwrap();
        let shape = ObjectShape::new(true, Vec::new());
        Object::from_stored(key, Revision::new(1), Change::Added, json.as_bytes(), &shape).unwrap()
    }

    /// Compares all ways of matching with the selector itself. Those for many conditions also hold for few.
    fn check(selector: &str, object: &Object) {
        let selector = LabelSelector::parse(selector).unwrap();
        let conditions = LabelConditions::new(&selector);
        let expected = selector.matches(|label| object.label(label));
        assert_eq!(conditions.match_object(object), expected, "{selector} and {:?}", object.json());
        assert_eq!(conditions.match_object_many(object), expected, "{selector} and {:?}", object.json());
        let labels = SortedLabels::new(object);
        assert_eq!(conditions.match_labels(&labels), expected, "{selector} and {:?}", object.json());
        assert_eq!(conditions.match_many(&labels), expected, "{selector} and {:?}", object.json());
    }

    fn numbered(count: usize, one: impl Fn(usize) -> String) -> String {
        (0..count).map(one).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn work_for_an_object_does_not_grow_with_the_requirements_of_a_selector() {
        let labels: Vec<_> = (0..5).map(|n| (format!("l{n}"), n.to_string())).collect();
        let object = object(&labels);
        let cases = [
            ("absent labels", format!("{},l9", numbered(999, |n| format!("!a{n}")))),
            ("absent labels without a required one", numbered(1_000, |n| format!("!a{n}"))),
            ("values of absent labels", numbered(1_000, |n| format!("a{n}!=x"))),
            ("one label", numbered(1_000, |n| format!("l1!=x{n}"))),
            ("lists of one label", numbered(300, |n| format!("l1 in (1,x{n},y{n})"))),
            ("bounds of one label", numbered(1_000, |n| format!("l1<{},l1>0", n + 2))),
        ];
        for (what, selector) in cases {
            let conditions = LabelConditions::new(&LabelSelector::parse(&selector).unwrap());
            let sorted = SortedLabels::new(&object);
            let evaluated = |matches: &dyn Fn() -> bool| {
                EVALUATED.set(0);
                matches();
                EVALUATED.get()
            };
            let by_object = evaluated(&|| conditions.match_object(&object));
            let by_labels = evaluated(&|| conditions.match_labels(&sorted));
            assert!(by_object <= labels.len(), "{what}: {by_object} conditions are evaluated for five labels");
            assert!(by_labels <= labels.len(), "{what}: {by_labels} conditions are evaluated for five labels");
            let operators = match conditions.conditions.first().map(|condition| &condition.operators) {
                Some(Operators::All(operators)) => operators.len(),
                _ => 1,
            };
            assert!(operators <= 2, "{what}: requirements on one label are joined");
            check(&selector, &object);
        }
    }

    #[test]
    fn last_value_of_a_duplicate_label_counts() {
        let pairs = [("b", "1"), ("a", "1"), ("b", "2"), ("c", "3"), ("b", "3")];
        let object = object(&pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let absent = numbered(20, |n| format!("!x{n}"));
        for selector in ["b=3", "b=1", "b=3,a=1", "b=2,a=1", "b=3,c", "a,b>2,c", "a,b<3,c"] {
            check(selector, &object);
            check(&format!("{selector},{absent}"), &object);
        }
    }

    proptest! {
        #[test]
        fn conditions_match_like_the_selector(
            requirements in prop::collection::vec(
                prop_oneof![
                    "[a-f]", "![a-f]", "[a-f]=[0-5x]", "[a-f]!=[0-5x]", "[a-f]>[0-5]", "[a-f]<[0-5]",
                    "[a-f] in \\([0-5],[0-5],x\\)", "[a-f] notin \\([0-5],\\)", "[a-f] in \\(\\)",
                    "[g-z]{2}!=x", "![g-z]{2}",
                ],
                0..14,
            ),
            labels in prop::collection::vec(("[a-f]|[g-z]{2}", "[0-5x]?"), 0..14),
        ) {
            check(&requirements.join(","), &object(&labels));
        }
    }
}
