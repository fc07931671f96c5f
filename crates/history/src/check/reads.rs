//! Checks gets and lists against the store's log.

use std::collections::BTreeMap;

use super::{KnownRevisions, violation};
use crate::log::StoreLog;
use crate::record::{Freshness, Get, List, Record};
use crate::{Guarantee, Violation};

pub(crate) fn check(records: &[Record], log: &StoreLog) -> Vec<Violation> {
    let known = KnownRevisions::new(records);
    records
        .iter()
        .filter_map(|record| match record {
            Record::Get(one) => get(one, log, &known),
            Record::List(one) => list(one, log, &known),
            _ => None,
        })
        .collect()
}

fn get(get: &Get, log: &StoreLog, known: &KnownRevisions) -> Option<Violation> {
    let Get { client, object, from, .. } = get;
    let floor = known.before(*from);
    let Some((revision, state)) = &get.found else {
        let absent = log.last(object, floor).is_none_or(|change| change.state.is_none());
        let deleted = log.after(object, floor).any(|change| change.state.is_none());
        return (!absent && !deleted).then(|| {
            let evidence = format!("{client} does not find {object}, which exists since before revision {floor}");
            violation(Guarantee::ReadYourWrites, evidence)
        });
    };
    match log.at(object, *revision) {
        Some(change) if change.state.as_ref() == Some(state) => {}
        _ => {
            let evidence = format!("{client} reads {object} at revision {revision} in a state it never had");
            return Some(violation(Guarantee::Complete, evidence));
        }
    }
    let replaced = log.after(object, *revision).next()?.revision;
    (replaced <= floor).then(|| {
        let evidence = format!(
            "{client} reads {object} at revision {revision}; revision {replaced} replaced it, and {floor} was known \
             before the read began"
        );
        violation(Guarantee::ReadYourWrites, evidence)
    })
}

fn list(list: &List, log: &StoreLog, known: &KnownRevisions) -> Option<Violation> {
    let List { client, revision, freshness, .. } = list;
    let floor = known.before(list.from);
    let stale = match freshness {
        Freshness::MostRecent => (*revision < floor).then(|| {
            let evidence = format!("{client} lists revision {revision}; {floor} was known before the list began");
            violation(Guarantee::ReadYourWrites, evidence)
        }),
        Freshness::NotOlderThan(requested) => (revision < requested).then(|| {
            let evidence = format!("{client} lists revision {revision}, and requested {requested} or later");
            violation(Guarantee::NoTimeTravel, evidence)
        }),
        Freshness::Exact(requested) => (revision != requested).then(|| {
            let evidence = format!("{client} lists revision {revision}, and requested exactly {requested}");
            violation(Guarantee::Complete, evidence)
        }),
        Freshness::Any => None,
    };
    if stale.is_some() {
        return stale;
    }
    let expected = log.state_at(*revision, &list.selector);
    let listed: BTreeMap<&str, _> = list.items.iter().map(|(object, (at, state))| (&**object, (*at, state))).collect();
    if expected == listed {
        return None;
    }
    let differs = expected
        .keys()
        .chain(listed.keys())
        .find(|object| expected.get(*object) != listed.get(*object))
        .expect("unequal maps differ somewhere");
    let of = |state: Option<&(u64, &crate::State)>| {
        state.map_or_else(|| "absent".to_owned(), |(at, state)| format!("{:?} of revision {at}", state.value))
    };
    let evidence = format!(
        "{client} lists revision {revision}, where {differs} is {}; the list shows it as {}",
        of(expected.get(differs)),
        of(listed.get(differs))
    );
    Some(violation(Guarantee::Complete, evidence))
}
