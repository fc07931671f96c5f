//! Jumps of the servers' wall clock: a library that is loaded before libc's and adds an offset to the time of day. The
//! monotonic clock does not jump, as on a machine whose time is set.
//!
//! etcd is not affected: Go asks the kernel, without libc.

use std::path::{Path, PathBuf};

use crate::failure::{Outcome, ensure, fail};
use crate::process::Run;
use crate::tools;

use super::{Stage, pause};

/// The environment variable with the path of the offset file. The file contains the offset in seconds, as a 64-bit
/// integer in native byte order.
const OFFSET_FILE: &str = "LISTWATCH_E2E_CLOCK_OFFSET";

const SOURCE: &str = include_str!("clock.c");

/// A clock that can be set.
pub(super) struct Clock {
    library: PathBuf,
    offset: PathBuf,
}

impl Clock {
    /// Builds the library in `dir`.
    pub(super) fn new(dir: &Path) -> Outcome<Self> {
        ensure!(cfg!(target_os = "linux"), "the clock can be set on Linux only");
        let Some(cc) = tools::on_path("cc") else { fail!("a C compiler is needed to set the clock") };
        std::fs::create_dir_all(dir)?;
        let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
        std::fs::write(&source, SOURCE)?;
        Run::new(cc).args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl").text()?;
        let clock = Clock { library, offset: dir.join("clock-offset") };
        clock.set(0)?;
        Ok(clock)
    }

    /// The environment of a process with this clock.
    pub(super) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.library.clone()), (OFFSET_FILE, self.offset.clone())]
    }

    /// Sets the distance from the true time, in seconds.
    fn set(&self, seconds: i64) -> Outcome<()> {
        // The processes have mapped the file, so it is not replaced.
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&self.offset)?;
        Ok(file.write_all(&seconds.to_ne_bytes())?)
    }
}

/// Moves the clock two hours forward, then three hours back, then to the true time.
pub(super) fn jump(stage: &mut Stage) -> Outcome<()> {
    let Some(clock) = &stage.clock else { fail!("the clock cannot be set") };
    let kubectl = stage.kubectl()?;
    for hours in [2, -1, 0] {
        clock.set(hours * 3_600)?;
        pause(1);
        let create = ["create", "configmap", &format!("at{hours}"), "-o", "jsonpath={.metadata.creationTimestamp}"];
        let created = seconds_since_epoch(&["-d", &kubectl.run(&create).text()?])?;
        let distance = created - seconds_since_epoch(&[])?;
        let is_set = distance.abs_diff(hours * 3_600) < 120;
        ensure!(is_set, "the server's clock is {distance} s from the true time, not {hours} h");
        pause(1);
    }
    Ok(())
}

/// Returns the present time, or the time that the arguments of `date` give, in seconds since the Unix epoch.
fn seconds_since_epoch(arguments: &[&str]) -> Outcome<i64> {
    let seconds = Run::new("date").args(["-u", "+%s"]).args(arguments).text()?;
    seconds.trim().parse().map_err(|_| format!("`date` prints {seconds}").into())
}
