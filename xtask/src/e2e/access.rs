//! Access to a running API server by kubectl and curl.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::{Failure, Outcome, ensure, fail};
use crate::process::{Output, Run};

/// The time limit of a client call.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// The time limit until a health check passes.
const HEALTH_LIMIT: Duration = Duration::from_secs(60);
/// Time between two requests while a health check is awaited.
const HEALTH_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two reads of a state that is awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// The number of characters of a state that a failure shows.
const STATE_CHARS: usize = 1500;

/// The address and credentials of a server, and the client programs.
pub(crate) struct Access {
    pub(crate) url: String,
    pub(crate) kubeconfig: PathBuf,
    /// The directory for files of this run.
    pub(crate) dir: PathBuf,
    kubectl: PathBuf,
    curl: PathBuf,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Outcome<Value> {
        serde_json::from_slice(&self.body).map_err(|error| Failure::from(error).while_doing(self.text()))
    }
}

impl Access {
    /// Reads address, CA and token from a kubeconfig, and writes curl's settings into `dir`.
    pub(crate) fn from_kubeconfig(kubeconfig: &Path, kubectl: &Path, curl: &Path, dir: &Path) -> Outcome<Self> {
        std::fs::create_dir_all(dir)?;
        let access = Self {
            url: String::new(),
            kubeconfig: kubeconfig.to_owned(),
            dir: dir.to_owned(),
            kubectl: kubectl.to_owned(),
            curl: curl.to_owned(),
        };
        let view = access.kubectl(["config", "view", "--raw", "--minify", "--flatten", "-o", "json"]).text()?;
        let view: Value = serde_json::from_str(&view)?;
        let cluster = &view["clusters"][0]["cluster"];
        let url = cluster["server"].as_str().ok_or("the kubeconfig names no server")?.to_owned();
        let token = view["users"][0]["user"]["token"].as_str().ok_or("the kubeconfig has no bearer token")?;
        // curl reads its settings from CURL_HOME, so that command lines stay short.
        let mut settings = "silent\nshow-error\nno-buffer\n".to_owned();
        match cluster["certificate-authority-data"].as_str() {
            Some(ca) => {
                std::fs::write(dir.join("ca.crt"), base64(ca)?)?;
                settings += &format!("cacert = \"{}\"\n", dir.join("ca.crt").display());
            }
            None if cluster["insecure-skip-tls-verify"] == true => settings += "insecure\n",
            None => fail!("the kubeconfig has no CA"),
        }
        let credential = format!("header = \"Authorization: Bearer {token}\"\n");
        for (who, settings) in [("anonymous", settings.clone()), ("admin", settings + &credential)] {
            std::fs::create_dir_all(dir.join(who))?;
            std::fs::write(dir.join(who).join(".curlrc"), settings)?;
        }
        Ok(Self { url, ..access })
    }

    /// The path of kubectl.
    pub(crate) fn kubectl_file(&self) -> PathBuf {
        self.kubectl.clone()
    }

    /// The path of curl.
    pub(crate) fn curl_file(&self) -> PathBuf {
        self.curl.clone()
    }

    /// Returns a kubectl command with this server's kubeconfig and a separate discovery cache.
    pub(crate) fn kubectl<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Run {
        Run::new(&self.kubectl)
            .env("KUBECONFIG", &self.kubeconfig)
            .args(args)
            .env("HOME", &self.dir)
            .env("TMPDIR", &self.dir)
            .limit(CALL_LIMIT)
    }

    /// Returns the output of `kubectl <words>`. An error unless kubectl ends with code 0.
    pub(crate) fn kube(&self, words: &str) -> Outcome<String> {
        self.kubectl(words.split_whitespace()).text()
    }

    /// Returns the output of `kubectl get <words> -o json`.
    pub(crate) fn get(&self, words: &str) -> Outcome<Value> {
        Ok(serde_json::from_str(&self.kubectl(words.split_whitespace()).args(["-o", "json"]).text()?)?)
    }

    /// Reads `kubectl <words> -o json` until `check` accepts it. A failure shows the last unmet condition and the
    /// state.
    pub(crate) fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        words: &str,
        mut check: impl FnMut(&Value) -> Result<T, String>,
    ) -> Outcome<T> {
        let deadline = Instant::now() + limit;
        loop {
            let (why, state) = match self.get(words) {
                Ok(value) => match check(&value) {
                    Ok(found) => return Ok(found),
                    Err(why) => (why, summary(&value)),
                },
                Err(failure) => (failure.to_string(), String::new()),
            };
            if Instant::now() > deadline {
                let state: String = state.chars().take(STATE_CHARS).collect();
                fail!("{what}: not within {limit:?}: {why}; the last state: {state}");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns a curl command for a path of the API, with the admin's credential and a check of the certificate.
    pub(crate) fn curl(&self, path: &str) -> Run {
        self.curl_as("admin", path)
    }

    /// Returns a curl command without a credential.
    pub(crate) fn curl_anonymous(&self, path: &str) -> Run {
        self.curl_as("anonymous", path)
    }

    fn curl_as(&self, who: &str, path: &str) -> Run {
        Run::new(&self.curl).env("CURL_HOME", self.dir.join(who)).arg(format!("{}{path}", self.url)).limit(CALL_LIMIT)
    }

    /// Runs curl and returns the response, also one with an error code.
    pub(crate) fn answer(&self, curl: Run) -> Outcome<Answer> {
        let line = curl.line();
        let output: Output = curl.args(["--write-out", "%{stderr}%{http_code}"]).output()?;
        let code = output.stderr.lines().last().and_then(|line| line.trim().parse().ok()).unwrap_or(0);
        ensure!(code != 0, "`{line}` got no HTTP answer: {}", output.stderr.trim());
        Ok(Answer { code, body: output.stdout })
    }

    /// Runs curl for a health check and returns the response. Repeats the request while the check fails with 500, up to
    /// [`HEALTH_LIMIT`], because a check also fails while the store is slow.
    pub(crate) fn health(&self, curl: &Run) -> Outcome<Answer> {
        let deadline = Instant::now() + HEALTH_LIMIT;
        loop {
            let answer = self.answer(curl.clone())?;
            if answer.code != 500 || Instant::now() > deadline {
                return Ok(answer);
            }
            std::thread::sleep(HEALTH_INTERVAL);
        }
    }

    /// Sends a GET request as the admin.
    pub(crate) fn fetch(&self, path: &str) -> Outcome<Answer> {
        self.answer(self.curl(path))
    }

    /// Sends a GET request as the admin. Fails unless the response is 200 with JSON.
    pub(crate) fn fetch_json(&self, path: &str) -> Outcome<Value> {
        let answer = self.fetch(path)?;
        ensure!(answer.code == 200, "GET {path} answered {}: {}", answer.code, answer.text());
        answer.json()
    }

    /// Sends a JSON merge patch by curl, which starts faster than kubectl. An error unless the
    /// response is 200.
    pub(crate) fn merge_patch(&self, path: &str, patch: &Value) -> Outcome<Value> {
        let curl =
            self.curl(path).args(["--request", "PATCH", "--header", "Content-Type: application/merge-patch+json"]);
        let answer = self.answer(curl.args(["--data-binary", &patch.to_string()]))?;
        ensure!(answer.code == 200, "PATCH {path} answered {}: {}", answer.code, answer.text());
        answer.json()
    }
}

/// The status of an object, or of each item of a list.
fn summary(value: &Value) -> String {
    match value["items"].as_array() {
        Some(items) => {
            let item = |item: &Value| format!("{}: {}", item["metadata"]["name"], item["status"]);
            items.iter().map(item).collect::<Vec<_>>().join("\n")
        }
        None => format!("{} {}", value["spec"], value["status"]),
    }
}

/// Decodes standard base64, as kubeconfig files and Secrets carry certificates.
pub(crate) fn base64(text: &str) -> Outcome<Vec<u8>> {
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for c in text.bytes().filter(|c| !c.is_ascii_whitespace() && *c != b'=') {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => fail!("{:?} is no base64", char::from(other)),
        };
        bits = (bits << 6) | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_of_every_length_decodes() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9v\nYmFy", "foobar")] {
            assert_eq!(base64(text).unwrap(), bytes.as_bytes());
        }
        assert!(base64("Zm9v!").is_err());
    }
}
