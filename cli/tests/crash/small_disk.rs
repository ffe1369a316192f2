//! A small file system that goes away with whoever made it.
//!
//! A keeper process has it mounted in a mount namespace of its own; processes that are to see it enter that namespace. Nothing is
//! mounted where anybody else would see it, and the kernel unmounts it when the last of these processes has ended, however that
//! came about. Tests look into it through the keeper's entry in `/proc`.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Looks at the free space before it is given up.
const TRIES_MAX: usize = 100;

/// See the module.
pub struct SmallDisk {
    keeper: Child,
    /// Where processes in the namespace see it.
    dir: PathBuf,
    in_user_namespace: bool,
}

impl SmallDisk {
    /// Mounts a file system of `bytes` at `dir`, which is made; the reason when this machine does not permit it.
    pub fn mount(dir: &Path, bytes: u64) -> Result<Self, String> {
        std::fs::create_dir_all(dir).unwrap();
        let mut reasons = Vec::new();
        for in_user_namespace in [false, true] {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private"]);
            if in_user_namespace {
                command.args(["--user", "--map-root-user"]);
            }
            let script = r#"mount -t tmpfs -o "size=$2" tmpfs "$1" && echo mounted && exec cat"#;
            command.args(["sh", "-c", script, "sh"]).arg(dir).arg(bytes.to_string());
            // Its input ends with this process, and it with its input.
            let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let mut keeper = started.map_err(|error| format!("run unshare: {error}"))?;
            let mut line = String::new();
            let _ = BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line);
            let disk = Self { keeper, dir: dir.to_owned(), in_user_namespace };
            if line.trim() == "mounted" {
                return Ok(disk);
            }
            let mut disk = disk;
            let _ = disk.keeper.kill();
            let mut said = String::new();
            let _ = disk.keeper.stderr.take().unwrap().read_to_string(&mut said);
            reasons.push(said.trim().replace('\n', " "));
        }
        Err(format!("a file system of our own is not permitted: {}", reasons.join("; ")))
    }

    /// A command that runs another one where the file system is seen.
    pub fn within(&self) -> Vec<String> {
        let target = self.keeper.id().to_string();
        let mut words = vec!["nsenter", "--target", &target, "--mount"];
        if self.in_user_namespace {
            words.extend(["--user", "--preserve-credentials"]);
        }
        words.push("--");
        words.into_iter().map(str::to_owned).collect()
    }

    /// The path by which this process sees something in it.
    pub fn seen(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(self.dir.strip_prefix("/").unwrap()).join(name)
    }

    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        let facts = rustix::fs::statvfs(self.seen(".")).unwrap();
        facts.f_bavail * facts.f_frsize
    }

    /// Takes all but `leave` of the free space. Whoever writes there meanwhile may have taken some of it: then it is looked again.
    pub fn take(&self, name: &str, leave: u64) {
        let ballast = File::create(self.seen(name)).unwrap();
        for _ in 0..TRIES_MAX {
            let bytes = self.free().saturating_sub(leave);
            if bytes == 0 {
                return;
            }
            match rustix::fs::fallocate(&ballast, FallocateFlags::empty(), 0, bytes) {
                Err(Errno::NOSPC) => {}
                taken => return taken.unwrap(),
            }
        }
        panic!("the free space changes at each of {TRIES_MAX} looks");
    }

    /// Gives space back.
    pub fn give_back(&self, name: &str) {
        std::fs::remove_file(self.seen(name)).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
