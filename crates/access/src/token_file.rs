//! Static tokens from a file (`apiserver/pkg/authentication/token/tokenfile/tokenfile.go`).
//!
//! Each line is CSV: token, user name, UID and, optionally, one quoted list of groups.
//!
//! ```text
//! 31ada4fd-adec-460c-809a-9e56ceb75269,jane,1234,"dev,admins"
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use listwatch_meta::UserInfo;
use ring::digest;

use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator, add_authenticated_group};
use crate::maybe_future::MaybeFuture;

/// The columns that each line has: token, user name, UID.
const REQUIRED_COLUMNS: usize = 3;

/// The error of a text that is not a token file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidTokenFile(String);

impl std::fmt::Display for InvalidTokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidTokenFile {}

/// Authenticates the tokens of a file (`--token-auth-file`). The tokens are valid until the server ends.
pub struct TokenFileAuthenticator {
    /// Users by the SHA-256 of their token, so that the duration of a lookup reveals no token.
    users: HashMap<[u8; digest::SHA256_OUTPUT_LEN], Arc<UserInfo>>,
}

impl TokenFileAuthenticator {
    /// Creates an authenticator for the tokens of a file. Lines with an empty token are skipped. If two lines have the
    /// same token, the later line is used.
    ///
    /// # Errors
    /// The text is not CSV, or a line has fewer than three columns.
    pub fn new(text: &str) -> Result<Self, InvalidTokenFile> {
        let mut users = HashMap::new();
        let reader =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).comment(None).from_reader(text.as_bytes());
        for record in reader.into_records() {
            let record = record.map_err(|error| InvalidTokenFile(error.to_string()))?;
            if record.len() < REQUIRED_COLUMNS {
                let line = record.position().map_or(0, csv::Position::line);
                let found = record.len();
                return Err(InvalidTokenFile(format!(
                    "line {line}: at least {REQUIRED_COLUMNS} columns are needed (token, user name, user uid), found {found}"
                )));
            }
            let (token, username, uid) = (&record[0], &record[1], &record[2]);
            if token.is_empty() {
                continue;
            }
            let groups = record.get(REQUIRED_COLUMNS).unwrap_or_default().split(',').filter(|group| !group.is_empty());
            let groups: Vec<String> = groups.map(str::to_owned).collect();
            let (username, uid) = (username.to_owned(), uid.to_owned());
            let mut user = UserInfo { username, uid, groups, ..UserInfo::default() };
            add_authenticated_group(&mut user);
            users.insert(hash(token), Arc::new(user));
        }
        Ok(TokenFileAuthenticator { users })
    }
}

fn hash(token: &str) -> [u8; digest::SHA256_OUTPUT_LEN] {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

impl std::fmt::Debug for TokenFileAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The tokens never reach a log.
        write!(f, "TokenFileAuthenticator({})", self.users.len())
    }
}

impl Authenticator for TokenFileAuthenticator {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        let user = request.token.and_then(|token| self.users.get(&hash(token)));
        MaybeFuture::ready(match user {
            // A static token has no audiences, so the chain gives it those of this server.
            Some(user) => Authentication::Authenticated { user: Arc::clone(user), audiences: Vec::new() },
            None => Authentication::NotRecognized,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::AuthenticatorChain;

    async fn user(authenticator: &TokenFileAuthenticator, token: Option<&str>) -> String {
        match authenticator.authenticate(&AuthenticationRequest::of_token(token, 0)).await {
            Authentication::Authenticated { user, .. } => {
                format!("{} {} {}", user.username, user.uid, user.groups.join(","))
            }
            other => format!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn token_of_the_file_authenticates_its_user() {
        let text = "t1,jane,1,\"dev,admins\"\nt2,joe,2\r\n,nobody,3\nt3,old,4\nt3,new,5,\"system:masters\"\n";
        let authenticator = TokenFileAuthenticator::new(text).expect("a token file");
        for (token, expected) in [
            (Some("t1"), "jane 1 dev,admins,system:authenticated"),
            (Some("t2"), "joe 2 system:authenticated"),
            (Some("t3"), "new 5 system:masters,system:authenticated"),
            (Some("t4"), "NotRecognized"),
            (Some(""), "NotRecognized"),
            (None, "NotRecognized"),
        ] {
            assert_eq!(user(&authenticator, token).await, expected, "{token:?}");
        }
        assert_eq!(format!("{authenticator:?}"), "TokenFileAuthenticator(3)", "the tokens are not printed");
    }

    #[tokio::test]
    async fn token_of_the_file_is_valid_for_the_audiences_of_the_server_and_no_others() {
        let authenticator = TokenFileAuthenticator::new("t1,jane,1\n").expect("a token file");
        let chain = AuthenticatorChain::new().with(authenticator);
        let own = ["api".to_owned()];
        for (requested, expected) in [("api", true), ("vault", false)] {
            let requested = [requested.to_owned()];
            let request = AuthenticationRequest::of_token(Some("t1"), 0).with_audiences(&requested);
            let answer = chain.authenticate(&request.with_api_audiences(&own)).await;
            assert_eq!(matches!(answer, Authentication::Authenticated { .. }), expected, "{requested:?}");
        }
    }

    #[test]
    fn token_file_line_with_too_few_columns_is_an_error() {
        let error = TokenFileAuthenticator::new("t1,jane,1\nt2,joe\n").expect_err("two columns").to_string();
        assert_eq!(error, "line 2: at least 3 columns are needed (token, user name, user uid), found 2");
        assert!(TokenFileAuthenticator::new("").is_ok(), "an empty file has no tokens");
    }
}
