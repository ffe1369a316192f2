package thermocline.interop.cluster;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/** A process of the program that has a gRPC front, and the program's commands that go through it. */
public abstract class Role implements AutoCloseable {
    private static final Duration READY = Duration.ofSeconds(60);
    private static final Duration COMMAND = Duration.ofSeconds(60);
    private static final String ENDPOINT = "endpoint=";
    private static final Set<Process> RUNNING = ConcurrentHashMap.newKeySet();

    static {
        // When this JVM is stopped from outside, they go with it.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> RUNNING.forEach(Process::destroyForcibly)));
    }

    private final Path dir;
    private final Process process;
    private final String endpoint;

    Role(Path dir, List<String> arguments) throws Exception {
        this.dir = Files.createDirectories(dir);
        Path log = Files.createTempFile(dir, "log-", "");
        process = builder(arguments).redirectErrorStream(true).redirectOutput(log.toFile()).start();
        RUNNING.add(process);
        try {
            Waiting.until("the process says that it serves; its log is " + log, READY,
                () -> !process.isAlive() || endpoint(log) != null);
            endpoint = endpoint(log);
            if (endpoint == null) {
                throw new IOException("the process ended: " + Files.readString(log));
            }
        } catch (Exception | AssertionError e) {
            close();
            throw e;
        }
    }

    /** What came of a command. */
    public record Result(int code, byte[] output, String errors) {
        /** The output of a command that went well. */
        public byte[] good() {
            if (code != 0) {
                throw new AssertionError("exit code " + code + ": " + errors);
            }
            return output;
        }
    }

    /** Runs {@code thermocline words…} with {@code input} on its standard input, against this process. */
    public final Result run(byte[] input, String... words) throws Exception {
        List<String> arguments = new ArrayList<>(List.of(words));
        arguments.addAll(List.of("--endpoint", endpoint));
        Path in = Files.write(Files.createTempFile(dir, "in-", ""), input);
        Path out = Files.createTempFile(dir, "out-", "");
        Path errors = Files.createTempFile(dir, "errors-", "");
        Process command = builder(arguments).redirectInput(in.toFile()).redirectOutput(out.toFile())
            .redirectError(errors.toFile()).start();
        if (!command.waitFor(COMMAND.toMillis(), TimeUnit.MILLISECONDS)) {
            command.destroyForcibly();
            throw new AssertionError(arguments + " has not ended");
        }
        return new Result(command.exitValue(), Files.readAllBytes(out), Files.readString(errors));
    }

    /** Stops it as a machine would that hangs; it is still there for whoever is connected. */
    public final void suspend() throws Exception {
        signal("STOP");
    }

    /** Lets it go on. */
    public final void resume() throws Exception {
        signal("CONT");
    }

    private void signal(String name) throws Exception {
        int code = new ProcessBuilder("kill", "-" + name, Long.toString(process.pid())).start().waitFor();
        if (code != 0) {
            throw new IllegalStateException("SIG" + name + " was not sent: exit code " + code);
        }
    }

    private static ProcessBuilder builder(List<String> arguments) {
        List<String> command = new ArrayList<>(List.of(System.getProperty("thermocline")));
        command.addAll(arguments);
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment().keySet().removeIf(name -> name.startsWith("THERMOCLINE_"));
        return builder;
    }

    private static String endpoint(Path log) throws IOException {
        for (String line : Files.readAllLines(log)) {
            if (line.startsWith("ready ")) {
                return line.substring(line.indexOf(ENDPOINT) + ENDPOINT.length()).split(" ")[0];
            }
        }
        return null;
    }

    /** Ends it as a crash would: with SIGKILL. */
    @Override
    public final void close() throws Exception {
        process.destroyForcibly().waitFor();
        RUNNING.remove(process);
    }
}
