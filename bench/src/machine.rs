use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The machine a bench ran on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores this process may use.
    pub cores: usize,
    /// The processor's name.
    pub cpu: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Type of the file system that was measured, and its device.
    pub file_system: String,
}

impl Machine {
    /// Reads what the system tells; what it does not tell is `unknown`.
    pub fn read(dir: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let kernel = text("/proc/sys/kernel/osrelease").trim().to_owned();
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: value_of(&text("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            memory_mib: value_of(&text("/proc/meminfo"), "MemTotal")
                .and_then(|total| total.split(' ').next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib / 1024),
            kernel: if kernel.is_empty() { unknown() } else { format!("Linux {kernel}") },
            file_system: file_system(&text("/proc/self/mounts"), &dir).unwrap_or_else(unknown),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, cpu, memory_mib, kernel, file_system } = self;
        write!(out, "{cores} cores {cpu}, {:.1} GiB, {kernel}, {file_system}", *memory_mib as f64 / 1024.0)
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The value of the first `name : value` line.
fn value_of(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Type and device of the mount that holds `dir`.
fn file_system(mounts: &str, dir: &Path) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?, words.next()?))
    });
    // The last of several mounts on one place is the one that is seen.
    let (device, _, kind) = mounts.filter(|(_, at, _)| dir.starts_with(at)).max_by_key(|(_, at, _)| at.len())?;
    Some(format!("{kind} on {device}"))
}

/// The load average of the last minute; 0 where the system tells none.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// The commit this program was built from: as told by THERMOCLINE_COMMIT at run time (the `bench` command of xtask sets it) or at build time,
/// else that of the repository one stands in, else `unknown`. A `+` marks uncommitted changes.
pub fn commit() -> String {
    let told =
        std::env::var("THERMOCLINE_COMMIT").ok().or_else(|| option_env!("THERMOCLINE_COMMIT").map(str::to_owned));
    told.filter(|told| !told.is_empty()).or_else(commit_here).unwrap_or_else(unknown)
}

fn commit_here() -> Option<String> {
    Path::new("cli/src/commands/bench.rs").exists().then_some(())?;
    let output =
        Command::new("git").args(["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_is_the_file_system() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmp/x xfs rw 0 0\n";
        let of = |dir: &str| file_system(mounts, Path::new(dir)).unwrap();
        assert_eq!(of("/var/tmp"), "ext4 on /dev/vda");
        assert_eq!(of("/tmp/xy"), "tmpfs on tmpfs");
        assert_eq!(of("/tmp/x/y"), "xfs on /dev/vdb");
    }

    #[test]
    fn lines_of_proc_are_read() {
        assert_eq!(value_of("a: 1\nmodel name\t: Some CPU\n", "model name").unwrap(), "Some CPU");
        assert_eq!(value_of("a: 1\n", "model name"), None);
        let machine = Machine::read(Path::new("/"));
        assert!(machine.cores > 0 && machine.memory_mib > 0, "{machine}");
    }
}
