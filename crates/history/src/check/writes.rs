//! Checks writes against the store's log: an acknowledged write is in the log once, and a rejected
//! write is not.

use std::collections::{BTreeMap, HashMap};

use super::{KnownRevisions, violation};
use crate::log::StoreLog;
use crate::record::{Outcome, Record, Write};
use crate::{Guarantee, Violation};

pub(crate) fn check(records: &[Record], log: &StoreLog) -> Vec<Violation> {
    let known = KnownRevisions::new(records);
    let writes = || {
        records.iter().filter_map(|record| match record {
            Record::Write(write) => Some(write),
            _ => None,
        })
    };
    let mut by_value: HashMap<(&str, &str), Vec<u64>> = HashMap::new();
    for change in log.changes() {
        if let Some(state) = &change.state {
            by_value.entry((&change.object, &state.value)).or_default().push(change.revision);
        }
    }
    let mut violations: Vec<Violation> = writes()
        .filter_map(|write| match &write.value {
            Some(value) => put(write, value, &by_value, log, &known),
            None => deletion(write, log, &known),
        })
        .collect();
    violations.extend(too_few_deletions(writes(), log));
    violations
}

fn describe(write: &Write) -> String {
    let what = write.value.as_ref().map_or_else(|| "deletion".to_owned(), |value| format!("write of {value:?}"));
    format!("the {what} of {} by {}", write.object, write.client)
}

fn put(
    write: &Write,
    value: &str,
    by_value: &HashMap<(&str, &str), Vec<u64>>,
    log: &StoreLog,
    known: &KnownRevisions,
) -> Option<Violation> {
    let durable = |evidence: String| Some(violation(Guarantee::Durable, evidence));
    let found = by_value.get(&(&*write.object, value)).map_or(&[][..], |found| found);
    if found.len() > 1 {
        return durable(format!("{} is in the store {} times: {found:?}", describe(write), found.len()));
    }
    match (write.outcome, found) {
        (Outcome::Rejected, [revision]) => {
            durable(format!("{} was rejected, and is in the store as revision {revision}", describe(write)))
        }
        (Outcome::Applied { .. }, []) => durable(format!("{} was acknowledged, and is lost", describe(write))),
        (Outcome::Applied { revision: Some(told) }, [revision]) if told != *revision => {
            durable(format!("{} is revision {revision}, and the response shows {told}", describe(write)))
        }
        (Outcome::Applied { .. } | Outcome::Unknown, [revision]) => {
            if let Some(replaces) = write.replaces {
                let before = log.last(&write.object, revision.saturating_sub(1)).map_or(0, |change| change.revision);
                if before != replaces {
                    return durable(format!(
                        "{} replaces revision {replaces}, and the store had revision {before} before revision {revision}",
                        describe(write)
                    ));
                }
            }
            let floor = known.before(write.from);
            (matches!(write.outcome, Outcome::Applied { .. }) && *revision <= floor).then(|| {
                violation(
                    Guarantee::ReadYourWrites,
                    format!("{} is revision {revision}, but {floor} was known before it began", describe(write)),
                )
            })
        }
        _ => None,
    }
}

fn deletion(write: &Write, log: &StoreLog, known: &KnownRevisions) -> Option<Violation> {
    let Outcome::Applied { .. } = write.outcome else { return None };
    // A deletion that another client's write made unnecessary may have an older revision, but the object was absent at
    // some time during the request. Only a store without any deletion proves an error.
    let floor = known.before(write.from);
    let absent_then = log.last(&write.object, floor).is_none_or(|change| change.state.is_none());
    let later = log.after(&write.object, floor).any(|change| change.state.is_none());
    (!absent_then && !later)
        .then(|| violation(Guarantee::Durable, format!("{} was acknowledged, and is lost", describe(write))))
}

/// Reports objects with more acknowledged deletions than the log has.
fn too_few_deletions<'a>(writes: impl Iterator<Item = &'a Write>, log: &StoreLog) -> Vec<Violation> {
    let mut acknowledged: BTreeMap<&str, usize> = BTreeMap::new();
    for write in writes.filter(|write| write.value.is_none() && matches!(write.outcome, Outcome::Applied { .. })) {
        *acknowledged.entry(&write.object).or_default() += 1;
    }
    let deleted = |object: &str| log.changes_of(object).filter(|change| change.state.is_none()).count();
    acknowledged
        .into_iter()
        .map(|(object, count)| (object, count, deleted(object)))
        .filter(|(_, count, deleted)| count > deleted)
        .map(|(object, count, deleted)| {
            let evidence = format!("{count} deletions of {object} were acknowledged, and the store has {deleted}");
            violation(Guarantee::Durable, evidence)
        })
        .collect()
}
