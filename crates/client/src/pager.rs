//! Reads one list page by page: the options of each request, and the reaction to a failed page.
//!
//! | requested state | first request | further pages |
//! |---|---|---|
//! | the most recent state (`""`) | `limit` | `limit`, `continue` |
//! | anything (`"0"`) | `resourceVersion=0`, `limit` (which a watch cache ignores) | the same |
//! | not older than N | `resourceVersion=N`, no `limit`, so that a watch cache answers | – |
//! | not older than N, from a server without a watch cache | `resourceVersion=N`, `NotOlderThan`, `limit` | `limit`, `continue` |
//! `NotOlderThan` is required if `limit` and a version are combined, because the pair alone means
//! "exactly N", which may be compacted. The version of a paged list is the version of its first
//! page. If the token expires on a later page, the whole list is requested in one response.

use listwatch_meta::{ListOptions, ResourceVersion, canary};
use listwatch_wire::ListMeta;

/// The state of one paged list; the [module](self) describes the requests.
#[derive(Clone, Debug)]
pub struct Pager {
    /// The options of the first page's request.
    first: ListOptions,
    /// The token of the next page; empty at the start.
    token: String,
    /// The number of the requested page, from 1.
    page: u32,
    /// The version of the first page.
    version: String,
}

/// The next action after a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// Request the next page.
    More(ListOptions),
    /// The list is complete.
    Complete {
        /// The resource version of the list.
        version: String,
    },
    /// The server returned no version, so a watch cannot continue this list.
    NoVersion,
}

impl Pager {
    /// A list not older than `version` (`""` is the most recent, `"0"` any), in pages of
    /// `page_size` items. With `always_paged`, `limit` is also sent with a version.
    pub fn new(version: &str, page_size: i64, always_paged: bool) -> Self {
        let at_version = !matches!(version, "" | "0");
        let paged = !at_version || always_paged;
        let first = ListOptions {
            resource_version: ResourceVersion::new(version),
            resource_version_match: if at_version && paged { "NotOlderThan".to_owned() } else { String::new() },
            limit: if paged { page_size.max(0) } else { 0 },
            ..ListOptions::default()
        };
        Pager { first, token: String::new(), page: 1, version: String::new() }
    }

    /// The options of the request for the current page.
    pub fn options(&self) -> ListOptions {
        if self.token.is_empty() {
            return self.first.clone();
        }
        ListOptions { limit: self.first.limit, continue_token: self.token.clone(), ..ListOptions::default() }
    }

    /// Handles the end of the current page.
    pub fn handle_page(&mut self, meta: &ListMeta) -> Page {
        if self.page == 1 {
            self.version.clone_from(&meta.resource_version);
        }
        if self.version.is_empty() {
            return Page::NoVersion;
        }
        if meta.continue_token.is_empty() || canary!("client-reads-only-the-first-page") {
            return Page::Complete { version: self.version.clone() };
        }
        self.token.clone_from(&meta.continue_token);
        self.page += 1;
        Page::More(self.options())
    }

    /// The same list in one response, after a later page expired. `None` if only the first page was
    /// requested.
    pub(crate) fn whole_list(&self) -> Option<Pager> {
        (self.page > 1).then(|| Pager {
            first: ListOptions { limit: 0, resource_version_match: String::new(), ..self.first.clone() },
            token: String::new(),
            page: 1,
            version: String::new(),
        })
    }

    /// Starts again with the first page.
    pub fn restart(&mut self) {
        self.token.clear();
        self.page = 1;
    }

    /// The number of the requested page, from 1.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// True if the requested page is the first one.
    pub(crate) fn is_at_start(&self) -> bool {
        self.page == 1
    }

    /// True if the list requests the most recent state.
    pub(crate) fn requests_most_recent(&self) -> bool {
        self.first.resource_version.is_empty()
    }

    /// True when the list requests any state, however old.
    pub(crate) fn requests_any_state(&self) -> bool {
        self.first.resource_version.as_str() == "0"
    }
}

#[cfg(test)]
mod tests {
    use listwatch_wire::print_list_options;

    use super::*;

    fn meta(version: &str, token: &str) -> ListMeta {
        ListMeta { resource_version: version.to_owned(), continue_token: token.to_owned(), ..ListMeta::default() }
    }

    #[test]
    fn pager_requests_pages_with_the_parameters_of_the_wanted_state() {
        fn check(version: &str, always_paged: bool, first: &str, second: &str) {
            let mut pager = Pager::new(version, 500, always_paged);
            assert_eq!(print_list_options(&pager.options()), first, "{version:?}");
            let Page::More(options) = pager.handle_page(&meta("7", "t")) else { panic!("a token means more pages") };
            assert_eq!(print_list_options(&options), second, "{version:?}");
        }
        check("", false, "limit=500", "limit=500&continue=t");
        check("0", false, "resourceVersion=0&limit=500", "limit=500&continue=t");
        check("9", false, "resourceVersion=9", "continue=t");
        check("9", true, "resourceVersion=9&resourceVersionMatch=NotOlderThan&limit=500", "limit=500&continue=t");
    }

    #[test]
    fn list_version_is_that_of_the_first_page() {
        let mut pager = Pager::new("", 500, false);
        assert!(matches!(pager.handle_page(&meta("7", "t")), Page::More(_)));
        assert_eq!(pager.page(), 2);
        assert_eq!(pager.handle_page(&meta("8", "")), Page::Complete { version: "7".to_owned() });
        assert_eq!(Pager::new("", 500, false).handle_page(&meta("", "")), Page::NoVersion);
    }

    #[test]
    fn expired_page_is_replaced_by_one_unpaged_list() {
        let mut pager = Pager::new("9", 500, true);
        assert!(pager.whole_list().is_none());
        pager.handle_page(&meta("9", "t"));
        let whole = pager.whole_list().unwrap();
        assert_eq!(print_list_options(&whole.options()), "resourceVersion=9");
        pager.restart();
        assert_eq!(
            print_list_options(&pager.options()),
            "resourceVersion=9&resourceVersionMatch=NotOlderThan&limit=500"
        );
    }
}
