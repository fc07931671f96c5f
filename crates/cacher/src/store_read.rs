//! Reads that the store serves, with the semantics of the cache: [`get`], [`list`].

use std::sync::Arc;

use listwatch_meta::{Change, ContinueToken, Key, ListRequest, Object, ObjectShape, ReadAt, Revision, canary};
use listwatch_storage::{ListQuery, ReadError as StoreError, Reread, Storage};

use crate::cache::{DecodeError, decode};
use crate::error::{ReadError, UndecodableValue};
use crate::filter::Filter;
use crate::handle::List;
use crate::limits::{Limits, UNDECODABLE_KEYS_MAX};
use crate::snapshot::ListItems;

/// Reads one object linearizably, or at a former revision with [`ReadAt::Exact`]. `cached` is the object in the cache,
/// which is the result if the store has no other revision of it.
pub(crate) async fn get(
    storage: &Arc<dyn Storage>,
    key: &Key,
    at: ReadAt,
    shape: &ObjectShape,
    cached: Option<Object>,
) -> Result<Option<Object>, ReadError> {
    let (found, revision) = match at {
        ReadAt::MostRecent if let Some(cached) = cached => {
            match storage.get_unless(key, cached.revision()).await.map_err(ReadError::from_store)? {
                (Reread::Unchanged, _) => return Ok(Some(cached)),
                (Reread::Changed(found), revision) => (found, revision),
            }
        }
        ReadAt::Exact(_) => {
            let range = listwatch_meta::KeyRange::single(key);
            let query = ListQuery { range, at: exact(at), limit: 1 };
            let page = storage.list(query).await.map_err(ReadError::from_store)?;
            (page.items.into_iter().next(), page.revision)
        }
        _ => storage.get(key).await.map_err(ReadError::from_store)?,
    };
    reached(at, revision)?;
    let Some(entry) = found else { return Ok(None) };
    match decode(&entry, Change::Added, shape) {
        Ok(object) => Ok(Some(object)),
        Err(why) => Err(ReadError::UndecodableObject(undecodable_value(key, &why))),
    }
}

/// Lists objects, reading pages of the store until the client's page is full.
pub(crate) async fn list(
    storage: &Arc<dyn Storage>,
    filter: &Filter,
    request: &ListRequest,
    shape: &ObjectShape,
    limits: &Limits,
) -> Result<List, ReadError> {
    let limit = request.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let wanted_state = match request.at {
        ReadAt::LegacyExact(revision) if filter.requires_one_key() => ReadAt::NotOlderThan(revision),
        ReadAt::LegacyExact(revision) => ReadAt::Exact(revision),
        at => at,
    };
    let mut at = exact(wanted_state);
    let mut range = filter.range().starting_at(&start_key(filter, request));
    let mut objects = Vec::new();
    let mut undecodable = Vec::new();
    // True after compaction overtook the pages of an unpaged list: the rest is read in one piece.
    let mut single = false;
    loop {
        let wanted = limit.saturating_sub(objects.len());
        // A selector discards objects, so pages of at least the usual size save round trips.
        let page_size = if filter.selects() { limits.list_page_objects } else { wanted.min(limits.list_page_objects) };
        let query = ListQuery { range: range.clone(), at, limit: if single { 0 } else { page_size } };
        let page = match storage.list(query).await {
            Err(StoreError::Compacted { .. }) if at.is_some() && exact(wanted_state).is_none() && !single => {
                single = true;
                at = None;
                range = filter.range().starting_at(&start_key(filter, request));
                objects.clear();
                undecodable.clear();
                continue;
            }
            page => page.map_err(|error| expired_page(ReadError::from_store(error), request))?,
        };
        reached(wanted_state, page.revision)?;
        at = Some(page.revision);
        let last = page.items.last().map(|entry| entry.key.clone());
        let fetched = page.items.len() as u64;
        for (position, entry) in page.items.into_iter().enumerate() {
            match decode(&entry, Change::Added, shape) {
                Ok(object) if filter.covers(&entry.key) && filter.selects_object(&object, shape) => {
                    objects.push(object)
                }
                Ok(_) => {}
                Err(why) if undecodable.len() < UNDECODABLE_KEYS_MAX => {
                    undecodable.push(undecodable_value(&entry.key, &why));
                }
                Err(_) => {}
            }
            if objects.len() == limit {
                let rest = fetched - 1 - position as u64;
                let more = page.more || rest > 0;
                let remaining = page.remaining.filter(|_| more && !filter.selects()).map(|behind| behind + rest);
                let continue_token = more.then(|| token(filter, page.revision, &entry.key));
                return Ok(finish(page.revision, objects, undecodable, continue_token, remaining));
            }
        }
        match last {
            Some(last) if page.more => range = range.starting_at(&format!("{last}\0")),
            _ => return Ok(finish(page.revision, objects, undecodable, None, None)),
        }
    }
}

fn undecodable_value(key: &Key, why: &DecodeError) -> UndecodableValue {
    UndecodableValue { key: key.clone(), reason: why.to_string().into() }
}

fn finish(
    revision: Revision,
    objects: Vec<Object>,
    undecodable: Vec<UndecodableValue>,
    continue_token: Option<String>,
    remaining: Option<u64>,
) -> List {
    List { revision, continue_token, remaining, items: ListItems::ready(objects), undecodable }
}

/// The first key that a list may show.
pub(crate) fn start_key(filter: &Filter, request: &ListRequest) -> String {
    let resume = request.resume.as_ref().filter(|_| !canary!("cacher-starts-each-page-at-the-beginning"));
    resume.map_or_else(String::new, |token| format!("{}{}", filter.collection().start(), token.start))
}

/// The continue token for the keys after `last`.
pub(crate) fn token(filter: &Filter, revision: Revision, last: &Key) -> String {
    let last = last.as_str();
    let relative = last.strip_prefix(filter.collection().start()).unwrap_or(last);
    ContinueToken::after(revision, relative).encode()
}

/// Converts an expired revision into an expired token, if the read's revision came from a token.
pub(crate) fn expired_page(error: ReadError, request: &ListRequest) -> ReadError {
    match (error, &request.resume) {
        (ReadError::Expired { .. }, Some(token)) => {
            ReadError::ExpiredPage { token: Some(token.inconsistent().encode()) }
        }
        (error, _) => error,
    }
}

fn exact(at: ReadAt) -> Option<Revision> {
    match at {
        ReadAt::Exact(revision) => Some(revision),
        _ => None,
    }
}

fn reached(at: ReadAt, current: Revision) -> Result<(), ReadError> {
    match at {
        ReadAt::NotOlderThan(requested) | ReadAt::LegacyExact(requested) if requested > current => {
            Err(ReadError::TooLarge { requested, current, retry_after_seconds: 0 })
        }
        _ => Ok(()),
    }
}
