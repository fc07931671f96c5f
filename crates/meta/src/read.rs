//! Options of a list or a watch, parsed once: [`ListOptions`] contains them as the client sent them, [`ListRequest`]
//! and [`WatchRequest`] after parsing.
//!
//! Code that uses these requests never compares a resource version with `""` or `"0"`.
//!
//! | resourceVersionMatch | resourceVersion | limit | continue | list reads |
//! |---|---|---|---|---|
//! | – | `""` | any | – | [`ReadAt::MostRecent`] |
//! | – | `"0"` | ignored | – | [`ReadAt::Any`] |
//! | – | `"N"` | 0 | – | [`ReadAt::NotOlderThan`] |
//! | – | `"N"` | > 0 | – | [`ReadAt::LegacyExact`] |
//! | NotOlderThan | `"0"` / `"N"` | honored for N | – | `Any` / `NotOlderThan` |
//! | Exact | `"N"` | any | – | `Exact` |
//! | – | `""`, `"0"` | any | at a revision | `Exact` at the token's |
//! | – | `""`, `"0"` | any | inconsistent | `MostRecent` |
//!
//! Rules and messages: apimachinery `ValidateListOptions` and `SetListOptionsDefaults`,
//! `pkg/storage/interfaces.go`.

use crate::continue_token::ContinueToken;
use crate::object::ObjectShape;
use crate::revision::{ResourceVersion, Revision};
use crate::selector::{FieldSelector, FieldTerm, LabelSelector};
use crate::shard::ShardSelector;
use crate::status::{FieldError, Status};

/// The `ListOptions` of a request: decoded from the query, without validation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Stream changes instead of answering once.
    pub watch: bool,
    /// The client understands `BOOKMARK` events.
    pub allow_watch_bookmarks: bool,
    /// The requested resource version.
    pub resource_version: ResourceVersion,
    /// `""`, `Exact` or `NotOlderThan`.
    pub resource_version_match: String,
    /// Page size; no limit when ≤ 0.
    pub limit: i64,
    /// Page token.
    pub continue_token: String,
    /// Duration of a watch in seconds; the server chooses if it is `None` or 0.
    pub timeout_seconds: Option<i64>,
    /// WatchList: begin the watch with the current state as `ADDED` events.
    pub send_initial_events: Option<bool>,
    /// Filter by labels.
    pub label_selector: String,
    /// Filter by fields.
    pub field_selector: String,
    /// Filter by shards.
    pub shard_selector: String,
}

/// The state that a read must return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAt {
    /// A state that contains every write acknowledged before the read began.
    MostRecent,
    /// Any state, however old.
    Any,
    /// This revision or a newer one.
    NotOlderThan(Revision),
    /// Exactly this revision.
    Exact(Revision),
    /// Exactly this revision for a collection. For one name, which upstream reads by its key: the store's latest state,
    /// which must not be older than this revision (`ValidateListOptions` in `apiserver/pkg/storage/interfaces.go`).
    LegacyExact(Revision),
}

/// A parsed list request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// The state to read.
    pub at: ReadAt,
    /// Page size; `None` for all objects.
    pub limit: Option<u64>,
    /// The continue token of the request; `None` for the first page.
    pub resume: Option<ContinueToken>,
    /// Filter by labels.
    pub labels: LabelSelector,
    /// Filter by fields.
    pub fields: FieldSelector,
    /// Filter by shards.
    pub shard: Option<ShardSelector>,
}

/// The position at which a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFrom {
    /// The current state as `ADDED` events, then live changes.
    InitialEvents {
        /// The freshness of the initial state; never [`ReadAt::Exact`] or [`ReadAt::LegacyExact`].
        at: ReadAt,
        /// Send the annotated bookmark after the initial events, if the client accepts bookmarks.
        mark_end: bool,
    },
    /// From now on, without initial events. `MostRecent` reads the current revision from the store; `Any` uses the
    /// cache's revision.
    Now(ReadAt),
    /// Every change after this revision.
    After(Revision),
}

/// A parsed watch request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// The position at which the watch begins.
    pub from: WatchFrom,
    /// Whether to send bookmarks.
    pub bookmarks: bool,
    /// The requested duration in seconds; `None` if the server chooses. Zero or less ends the
    /// stream at once.
    pub timeout_seconds: Option<i64>,
    /// Filter by labels.
    pub labels: LabelSelector,
    /// Filter by fields.
    pub fields: FieldSelector,
    /// Filter by shards.
    pub shard: Option<ShardSelector>,
}

/// The largest number of requirements in the label selector of a request, and in its field selector. Each value of a
/// list counts, and equal requirements count once. A selector with more is refused with 400, because a watch keeps
/// memory for each. The time to match an object does not grow with their number. kube-apiserver has no such limit, and
/// selectors in objects are not limited either.
pub const SELECTOR_VALUES_MAX: usize = 10_000;

const EXACT: &str = "Exact";
const NOT_OLDER_THAN: &str = "NotOlderThan";

impl ListOptions {
    /// Parses the options of a LIST on a resource of this shape.
    ///
    /// # Errors
    /// The [`Status`] of kube-apiserver: 422 for a forbidden combination; 400 for an invalid
    /// selector, field label, resource version or continue token.
    pub fn list(&self, shape: &ObjectShape) -> Result<ListRequest, Status> {
        let (labels, fields) = self.selectors()?;
        self.validate(false)?;
        let fields = selectable(fields, shape)?;
        let shard = self.shard()?;
        let limit = u64::try_from(self.limit).ok().filter(|limit| *limit > 0);

        if !self.continue_token.is_empty() {
            let token =
                ContinueToken::decode(&self.continue_token).map_err(|error| Status::bad_request(error.to_string()))?;
            if !matches!(self.resource_version.as_str(), "" | "0") {
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
            let at = token.at.map_or(ReadAt::MostRecent, ReadAt::Exact);
            return Ok(ListRequest { at, limit, resume: Some(token), labels, fields, shard });
        }

        let revision = self
            .resource_version
            .revision()
            .map_err(|error| Status::bad_request(format!("invalid resource version: {error}")))?;
        let at = match self.resource_version_match.as_str() {
            _ if self.resource_version.is_empty() => ReadAt::MostRecent,
            _ if revision.is_zero() => ReadAt::Any,
            EXACT => ReadAt::Exact(revision),
            "" if limit.is_some() => ReadAt::LegacyExact(revision),
            _ => ReadAt::NotOlderThan(revision),
        };
        // A read at "Any" is never paged: the whole cache answers it.
        let limit = limit.filter(|_| at != ReadAt::Any);
        Ok(ListRequest { at, limit, resume: None, labels, fields, shard })
    }

    /// Parses the options of a WATCH on a resource of this shape. `legacy_path` is true for the
    /// deprecated `/watch/` paths without `?watch=true`. These paths are checked by the rules of LIST and
    /// never default to WatchList.
    ///
    /// # Errors
    /// As [`ListOptions::list`], except that an invalid resource version is a 500 without a reason,
    /// as in kube-apiserver.
    pub fn watch(&self, shape: &ObjectShape, legacy_path: bool) -> Result<WatchRequest, Status> {
        self.watch_of(None, shape, legacy_path)
    }

    /// As [`ListOptions::watch`], for a path that names one object.
    ///
    /// # Errors
    /// As [`ListOptions::watch`]; also 400 when a field selector does not select exactly this name.
    pub fn watch_object(&self, name: &str, shape: &ObjectShape, legacy_path: bool) -> Result<WatchRequest, Status> {
        self.watch_of(Some(name), shape, legacy_path)
    }

    fn watch_of(&self, name: Option<&str>, shape: &ObjectShape, legacy_path: bool) -> Result<WatchRequest, Status> {
        let legacy = legacy_path && !self.watch;
        let mut options = self.clone();
        if !legacy {
            options.default_to_watch_list();
        }
        let (labels, fields) = options.selectors()?;
        options.validate(!legacy)?;
        let fields = selectable(fields, shape)?;
        if name.is_some() && !fields.terms().is_empty() && fields.requires_exact("metadata.name") != name {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        let shard = options.shard()?;
        let revision = options.resource_version.revision().map_err(|error| Status::unknown(error.to_string()))?;
        let unset = options.resource_version.is_empty();
        let fresh = match () {
            () if unset => ReadAt::MostRecent,
            () if revision.is_zero() => ReadAt::Any,
            () => ReadAt::NotOlderThan(revision),
        };
        let from = match options.send_initial_events {
            Some(true) => WatchFrom::InitialEvents { at: fresh, mark_end: options.allow_watch_bookmarks },
            Some(false) if revision.is_zero() => WatchFrom::Now(fresh),
            // Only the legacy paths get here without a version: the cache as it is, without the
            // bookmark.
            None if revision.is_zero() => WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false },
            _ => WatchFrom::After(revision),
        };
        Ok(WatchRequest {
            from,
            bookmarks: options.allow_watch_bookmarks,
            timeout_seconds: options.timeout_seconds.filter(|seconds| *seconds != 0),
            labels,
            fields,
            shard,
        })
    }

    /// Parses the `resourceVersion` of a GET.
    ///
    /// # Errors
    /// A 500 without a reason when it is not a number, as in kube-apiserver.
    pub fn get(&self) -> Result<ReadAt, Status> {
        let revision = self.resource_version.revision().map_err(|error| Status::unknown(error.to_string()))?;
        Ok(match () {
            () if self.resource_version.is_empty() => ReadAt::MostRecent,
            () if revision.is_zero() => ReadAt::Any,
            () => ReadAt::NotOlderThan(revision),
        })
    }

    fn default_to_watch_list(&mut self) {
        let unversioned = matches!(self.resource_version.as_str(), "" | "0");
        if self.send_initial_events.is_none() && self.resource_version_match.is_empty() && unversioned {
            self.send_initial_events = Some(true);
            self.resource_version_match = NOT_OLDER_THAN.to_owned();
        }
    }

    fn validate(&self, watch: bool) -> Result<(), Status> {
        const MATCH: &str = "resourceVersionMatch";
        let matching = self.resource_version_match.as_str();
        let mut errors = Vec::new();
        if watch {
            if self.send_initial_events.is_some() && matching != NOT_OLDER_THAN {
                errors.push(FieldError::forbidden(
                    MATCH,
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            if !matching.is_empty() {
                if self.send_initial_events.is_none() {
                    errors.push(FieldError::forbidden(
                        MATCH,
                        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                    ));
                }
                if matching != NOT_OLDER_THAN {
                    errors.push(FieldError::not_supported(MATCH, matching, &[NOT_OLDER_THAN]));
                }
                if !self.continue_token.is_empty() {
                    errors.push(FieldError::forbidden(
                        MATCH,
                        "resourceVersionMatch is forbidden when continue is provided",
                    ));
                }
            }
        } else {
            if !matching.is_empty() {
                if self.resource_version.is_empty() {
                    errors.push(FieldError::forbidden(
                        MATCH,
                        "resourceVersionMatch is forbidden unless resourceVersion is provided",
                    ));
                }
                if !self.continue_token.is_empty() {
                    errors.push(FieldError::forbidden(
                        MATCH,
                        "resourceVersionMatch is forbidden when continue is provided",
                    ));
                }
                if matching != EXACT && matching != NOT_OLDER_THAN {
                    errors.push(FieldError::not_supported(MATCH, matching, &[EXACT, NOT_OLDER_THAN, ""]));
                }
                if matching == EXACT && self.resource_version.as_str() == "0" {
                    errors.push(FieldError::forbidden(
                        MATCH,
                        "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                    ));
                }
            }
            if self.send_initial_events.is_some() {
                errors.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors))
    }

    /// Parses the shards. An invalid one is a 500 without a reason, as in kube-apiserver.
    fn shard(&self) -> Result<Option<ShardSelector>, Status> {
        if self.shard_selector.is_empty() {
            return Ok(None);
        }
        ShardSelector::parse(&self.shard_selector).map(Some).map_err(|error| Status::unknown(error.to_string()))
    }

    /// Parses the selectors. kube-apiserver does so while it decodes the query, so their errors
    /// precede all others.
    fn selectors(&self) -> Result<(LabelSelector, FieldSelector), Status> {
        let labels =
            LabelSelector::parse(&self.label_selector).map_err(|error| Status::bad_request(error.to_string()))?;
        let fields =
            FieldSelector::parse(&self.field_selector).map_err(|error| Status::bad_request(error.to_string()))?;
        check_selector_size("label", labels.value_count())?;
        check_selector_size("field", fields.terms().len())?;
        Ok((labels, fields))
    }
}

/// Refuses a selector with more than [`SELECTOR_VALUES_MAX`] requirements and values.
fn check_selector_size(kind: &str, values: usize) -> Result<(), Status> {
    if values <= SELECTOR_VALUES_MAX {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "the {kind} selector has {values} requirements and values, and at most {SELECTOR_VALUES_MAX} are allowed"
    )))
}

/// Replaces aliases, and the selector labels of the requested version, by the labels of the fields in the shape. Returns a 400
/// [`Status`] for a label that is not selectable.
fn selectable(fields: FieldSelector, shape: &ObjectShape) -> Result<FieldSelector, Status> {
    match fields.terms().iter().find(|term| !shape.is_selectable(&term.field)) {
        None if fields.terms().iter().any(|term| shape.own_label(&term.field) != term.field) => {
            let own = |term: &FieldTerm| FieldTerm { field: shape.own_label(&term.field).to_owned(), ..term.clone() };
            Ok(FieldSelector::new(fields.terms().iter().map(own).collect()))
        }
        None => Ok(fields),
        Some(term) if !shape.has_own_labels() => Err(Status::bad_request(format!(
            "{:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            term.field
        ))),
        Some(term) => Err(Status::bad_request(format!("field label not supported: {}", term.field))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::SelectableField;

    fn pods() -> ObjectShape {
        ObjectShape::new(true, vec![SelectableField::string("spec.nodeName")])
    }

    fn options(text: &str) -> ListOptions {
        let mut options = ListOptions::default();
        for (key, value) in text.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "rv" => options.resource_version = ResourceVersion::new(value),
                "match" => options.resource_version_match = value.to_owned(),
                "limit" => options.limit = value.parse().unwrap(),
                "continue" => options.continue_token = value.to_owned(),
                "sie" => options.send_initial_events = Some(value == "true"),
                "bookmarks" => options.allow_watch_bookmarks = true,
                "watch" => options.watch = true,
                "field" => options.field_selector = value.to_owned(),
                "label" => options.label_selector = value.to_owned(),
                other => panic!("{other}"),
            }
        }
        options
    }

    fn list(text: &str) -> Result<(ReadAt, Option<u64>), (u16, String)> {
        options(text)
            .list(&pods())
            .map(|request| (request.at, request.limit))
            .map_err(|status| (status.code, status.message))
    }

    fn watch(text: &str) -> Result<WatchFrom, (u16, String)> {
        options(&format!("watch=1&{text}"))
            .watch(&pods(), false)
            .map(|request| request.from)
            .map_err(|status| (status.code, status.message))
    }

    #[test]
    fn list_options_determine_revision_and_limit() {
        let revision = Revision::new(7);
        let token = ContinueToken::after(Revision::new(5), "a").encode();
        let inconsistent = ContinueToken::after(Revision::new(5), "a").inconsistent().encode();
        for (text, expected) in [
            ("", (ReadAt::MostRecent, None)),
            ("limit=3", (ReadAt::MostRecent, Some(3))),
            ("limit=-3", (ReadAt::MostRecent, None)),
            ("rv=0", (ReadAt::Any, None)),
            ("rv=0&limit=3", (ReadAt::Any, None)),
            ("rv=7", (ReadAt::NotOlderThan(revision), None)),
            ("rv=7&limit=3", (ReadAt::LegacyExact(revision), Some(3))),
            ("rv=0&match=NotOlderThan&limit=3", (ReadAt::Any, None)),
            ("rv=7&match=NotOlderThan&limit=3", (ReadAt::NotOlderThan(revision), Some(3))),
            ("rv=7&match=Exact", (ReadAt::Exact(revision), None)),
            (&format!("limit=3&continue={token}"), (ReadAt::Exact(Revision::new(5)), Some(3))),
            (&format!("rv=0&continue={token}"), (ReadAt::Exact(Revision::new(5)), None)),
            (&format!("continue={inconsistent}"), (ReadAt::MostRecent, None)),
        ] {
            assert_eq!(list(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn watch_options_determine_the_start_of_the_watch() {
        let revision = Revision::new(7);
        for (text, expected) in [
            ("", WatchFrom::InitialEvents { at: ReadAt::MostRecent, mark_end: false }),
            ("bookmarks=1", WatchFrom::InitialEvents { at: ReadAt::MostRecent, mark_end: true }),
            ("rv=0", WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false }),
            ("rv=7", WatchFrom::After(revision)),
            ("rv=7&continue=x", WatchFrom::After(revision)),
            (
                "sie=true&match=NotOlderThan&rv=7&bookmarks=1",
                WatchFrom::InitialEvents { at: ReadAt::NotOlderThan(revision), mark_end: true },
            ),
            ("sie=false&match=NotOlderThan", WatchFrom::Now(ReadAt::MostRecent)),
            ("sie=false&match=NotOlderThan&rv=0", WatchFrom::Now(ReadAt::Any)),
            ("sie=false&match=NotOlderThan&rv=7", WatchFrom::After(revision)),
        ] {
            assert_eq!(watch(text), Ok(expected), "{text}");
        }
        let one = |text| options(text).watch_object("web", &pods(), false).map_err(|status| status.message);
        assert!(one("field=metadata.name=web,spec.nodeName=a").is_ok());
        for other in ["field=metadata.name=x", "field=metadata.name!=x", "rv=abc&field=spec.nodeName=a"] {
            let refused = "fieldSelector metadata.name doesn't match requested name";
            assert_eq!(one(other), Err(refused.to_owned()), "{other}");
        }
        let legacy = options("").watch(&pods(), true).unwrap();
        assert_eq!(legacy.from, WatchFrom::InitialEvents { at: ReadAt::Any, mark_end: false });
    }

    #[test]
    fn forbidden_option_combination_returns_422() {
        fn invalid<T>(detail: &str) -> Result<T, (u16, String)> {
            Err((422, format!("ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: {detail}")))
        }
        assert_eq!(
            list("match=Exact"),
            invalid("Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided")
        );
        assert_eq!(
            list("rv=0&match=Exact"),
            invalid("Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        );
        assert_eq!(
            list("rv=5&match=exact"),
            invalid("Unsupported value: \"exact\": supported values: \"Exact\", \"NotOlderThan\", \"\"")
        );
        assert_eq!(
            watch("rv=5&match=NotOlderThan"),
            invalid("Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        );
        assert_eq!(
            watch("sie=true"),
            invalid("Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        );
        assert_eq!(
            watch("continue=x"),
            invalid("Forbidden: resourceVersionMatch is forbidden when continue is provided")
        );
        let two = watch("rv=5&match=Exact").unwrap_err().1;
        assert!(two.ends_with("Unsupported value: \"Exact\": supported values: \"NotOlderThan\"]"), "{two}");
        assert!(list("sie=false").unwrap_err().1.contains("sendInitialEvents is forbidden for list"));
        let both = list("match=Exact&continue=x").unwrap_err().1;
        assert!(both.contains("is invalid: [resourceVersionMatch"), "{both}");
    }

    #[test]
    fn selector_with_too_many_requirements_or_values_returns_400() {
        let numbered = |count: usize, one: &str| (0..count).map(|n| format!("{one}{n}")).collect::<Vec<_>>().join(",");
        let max = SELECTOR_VALUES_MAX;
        for (before, one, after) in [
            ("label=", "!a", ""),
            ("label=a in (", "x", ")"),
            ("label=a notin (", "x", ")"),
            ("field=", "metadata.name!=x", ""),
        ] {
            let text = |count| format!("{before}{}{after}", numbered(count, one));
            assert!(list(&text(max)).is_ok(), "{before}: as many as allowed");
            let kind = before.split('=').next().unwrap_or_default();
            let message =
                format!("the {kind} selector has 10001 requirements and values, and at most 10000 are allowed");
            assert_eq!(list(&text(max + 1)), Err((400, message.clone())), "{before}");
            assert_eq!(watch(&text(max + 1)), Err((400, message)), "{before}");
        }
        // Equal requirements count once.
        assert!(list(&format!("label={}", ["!a"; 21_000].join(","))).is_ok());
    }

    #[test]
    fn unparsable_option_returns_the_status_code_of_kube_apiserver() {
        let syntax = "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax";
        assert_eq!(list("rv=abc"), Err((400, format!("invalid resource version: {syntax}"))));
        assert_eq!(watch("rv=abc"), Err((500, syntax.to_owned())));
        assert_eq!(options("rv=abc").get().unwrap_err().code, 500);
        assert_eq!(list("field=spec.x=1"), Err((400, "field label not supported: spec.x".to_owned())));
        let token = ContinueToken::after(Revision::new(5), "a").encode();
        assert_eq!(
            list(&format!("rv=5&continue={token}")),
            Err((400, "specifying resource version is not allowed when using continue".to_owned()))
        );
        // Selectors are read first, then combinations are checked, then the token, then the version.
        assert_eq!(list("label=a in (&match=x").unwrap_err().0, 400);
        assert_eq!(list("field=spec.x=1&match=x").unwrap_err().0, 422);
        let refused = "specifying resource version is not allowed when using continue";
        assert_eq!(list(&format!("rv=abc&continue={token}")), Err((400, refused.to_owned())));
        assert!(list("continue=x").unwrap_err().1.starts_with("invalid continue token: continue key is not valid: "));
        let plain = ObjectShape::new(false, Vec::new());
        let status = options("field=x=1").list(&plain).unwrap_err();
        assert_eq!(
            status.message,
            "\"x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
    }
}
