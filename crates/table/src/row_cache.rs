//! Keeps the rows of Tables for later lists.
//!
//! The row of an unchanged object still changes, because the row contains ages. A kept row has two numbers in front,
//! the times between which its ages have the same text:
//!
//! ```text
//!  │ 8 bytes: printed at │ 8 bytes: unchanged until │ {"cells":["web",1,"5m"],"object":…}
//! ```
//!
//! The row of an object that is 3 hours old is unchanged for a minute. The row of an object that is 8 days old is
//! unchanged for a day.

use bytes::{BufMut, BytesMut};
use listwatch_cacher::{EncodingCache, EncodingId};
use listwatch_meta::Object;
use listwatch_printers::RowClock;
use time::OffsetDateTime;

use super::TableView;

/// Bytes before a kept row: the time of formatting and the time until which the row is unchanged, 8 bytes each.
const TIMES_BYTES: usize = 16;

impl TableView {
    /// Appends the row of an object. Uses the kept row if the ages in it still have the same text. Otherwise formats
    /// a new row and keeps it.
    ///
    /// The object must have the API version of the view. Each combination of resource, `includeObject` and
    /// [`MetaVersion`](crate::MetaVersion) needs a different `id`.
    pub fn write_kept_row(
        &self,
        out: &mut BytesMut,
        object: &Object,
        now: OffsetDateTime,
        cache: &EncodingCache,
        id: EncodingId,
    ) {
        let nanoseconds = nanoseconds(now);
        let is_written = cache.read(object, id, |kept| {
            let Some((printed_at, rest)) = kept.split_first_chunk::<8>() else { return false };
            let Some((until, row)) = rest.split_first_chunk::<8>() else { return false };
            let is_current = (i64::from_le_bytes(*printed_at)..i64::from_le_bytes(*until)).contains(&nanoseconds);
            if is_current {
                out.put_slice(row);
            }
            is_current
        });
        if is_written == Some(true) {
            return;
        }
        let (start, clock) = (out.len(), RowClock::new(now));
        self.write_row_at(out, object.json_slice(), &clock);
        let until = clock.unchanged_until().map_or(i64::MAX, self::nanoseconds);
        let mut kept = Vec::with_capacity(TIMES_BYTES + out.len() - start);
        kept.extend_from_slice(&nanoseconds.to_le_bytes());
        kept.extend_from_slice(&until.to_le_bytes());
        kept.extend_from_slice(&out[start..]);
        cache.keep(object, id, &kept);
    }
}

/// The time in nanoseconds since 1970, limited to the range of an `i64` (up to the year 2262).
fn nanoseconds(time: OffsetDateTime) -> i64 {
    let nanoseconds = time.unix_timestamp_nanos();
    i64::try_from(nanoseconds).unwrap_or(if nanoseconds < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use listwatch_meta::{Change, Revision};
    use listwatch_registry::Registry;
    use proptest::prelude::*;
    use time::Duration;

    use super::*;
    use crate::{IncludeObject, MetaVersion};

    proptest! {
        #[test]
        fn kept_row_equals_a_new_row_at_any_time(
            created in 0_i64..400_000,
            times in prop::collection::vec(prop_oneof![-2_000_i64..700_000, 0_i64..400_000_000], 1..12),
        ) {
            let registry = Registry::builtin();
            let resource = registry.find("batch", "v1", "jobs").unwrap();
            let view = TableView::new(resource, IncludeObject::None, MetaVersion::V1);
            let at = |seconds: i64| {
                let time = OffsetDateTime::UNIX_EPOCH + Duration::seconds(seconds);
                time.format(&time::format_description::well_known::Rfc3339).unwrap()
            };
            let json = format!(
                r#"{{"metadata":{{"name":"a","creationTimestamp":"{}"}},"status":{{"startTime":"{}"}}}}"#,
                at(created), at(created + 7),
            );
            let key = resource.key(Some("default"), "a").unwrap();
            let object =
                Object::from_stored(key, Revision::new(1), Change::Added, json.as_bytes(), &resource.shape).unwrap();
            let (cache, id) = (EncodingCache::new(10_000), EncodingId::new(1));
            for milliseconds in times {
                let now = OffsetDateTime::UNIX_EPOCH + Duration::seconds(created) + Duration::milliseconds(milliseconds);
                let (mut kept, mut new) = (BytesMut::new(), BytesMut::new());
                view.write_kept_row(&mut kept, &object, now, &cache, id);
                view.write_row(&mut new, object.json_slice(), now);
                prop_assert_eq!(kept, new);
            }
        }
    }

    #[test]
    fn row_of_an_old_object_is_formatted_once_while_its_age_text_is_unchanged() {
        let registry = Registry::builtin();
        let resource = registry.find("", "v1", "configmaps").unwrap();
        let json = br#"{"metadata":{"name":"a","creationTimestamp":"1970-01-01T00:00:00Z"}}"#;
        let key = resource.key(Some("default"), "a").unwrap();
        let object = Object::from_stored(key, Revision::new(1), Change::Added, json, &resource.shape).unwrap();
        let view = TableView::new(&Arc::clone(resource), IncludeObject::None, MetaVersion::V1);
        let (cache, id) = (EncodingCache::new(10_000), EncodingId::new(1));
        let printed_at = |seconds: i64| {
            view.write_kept_row(
                &mut BytesMut::new(),
                &object,
                OffsetDateTime::UNIX_EPOCH + Duration::seconds(seconds),
                &cache,
                id,
            );
            cache.read(&object, id, |kept| i64::from_le_bytes(*kept.first_chunk().unwrap()) / 1_000_000_000)
        };
        assert_eq!([36_000, 36_001, 39_599, 39_600].map(printed_at), [36_000, 36_000, 36_000, 39_600].map(Some));
        assert_eq!(printed_at(36_500), Some(36_500), "a clock that was set back");
    }
}
