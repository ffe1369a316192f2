package thermocline.interop.cluster;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.net.BookieId;

/** A bookie that runs as a process of its own; it is told by the arguments of its command alone. Its id is {@code host:port}. */
public abstract class Bookie implements AutoCloseable {
    private static final Duration GONE = Duration.ofSeconds(20);
    private static final Set<Process> RUNNING = ConcurrentHashMap.newKeySet();

    static {
        // When this JVM is stopped from outside, its bookies go with it.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> RUNNING.forEach(Process::destroyForcibly)));
    }

    private final int port;
    private final Path dir;
    private Process process;

    Bookie(int port, Path dir) {
        this.port = port;
        this.dir = dir;
    }

    /** The command that runs it, which is the same after a restart. */
    abstract List<String> command() throws IOException;

    /** Waits until it can be reached over the wire and through metadata. */
    abstract void awaitReady() throws Exception;

    /** Called once it is gone. */
    void gone() throws Exception {}

    /** The id that ledgers name. */
    public final BookieId id() {
        return BookieId.parse("127.0.0.1:" + port);
    }

    final int port() {
        return port;
    }

    /** Where it keeps everything. */
    public final Path dir() {
        return dir;
    }

    final Path log() {
        return dir.resolve("log");
    }

    final boolean isAlive() {
        return process != null && process.isAlive();
    }

    final void launch() throws IOException {
        Files.createDirectories(dir);
        ProcessBuilder builder = new ProcessBuilder(command());
        builder.environment().keySet().removeIf(name -> name.startsWith("THERMOCLINE_"));
        builder.redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(log().toFile()));
        process = builder.start();
        RUNNING.add(process);
    }

    /** Ends it as a crash would: with SIGKILL. */
    public final void kill() throws Exception {
        if (process == null) {
            return;
        }
        process.destroyForcibly();
        if (!process.waitFor(GONE.toMillis(), TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(id() + " is not gone after SIGKILL");
        }
        RUNNING.remove(process);
        process = null;
        gone();
    }

    /** Starts it again on its directory and port and waits until it serves. */
    public final void restart() throws Exception {
        kill();
        launch();
        awaitReady();
    }

    /** Waits for {@code condition}, and says with the end of the log when the process dies or the time is over. */
    final void await(String what, Duration limit, Waiting.Condition condition) throws Exception {
        try {
            Waiting.until(id() + " " + what, limit, () -> {
                if (!isAlive()) {
                    throw new AssertionError(id() + " ended");
                }
                return condition.holds();
            });
        } catch (AssertionError e) {
            List<String> lines = Files.exists(log()) ? Files.readAllLines(log()) : List.of();
            List<String> tail = lines.subList(Math.max(0, lines.size() - 20), lines.size());
            throw new AssertionError(e.getMessage() + "; its log ends with:\n" + String.join("\n", tail));
        }
    }

    @Override
    public void close() throws Exception {
        kill();
    }
}
