package thermocline.interop.cluster;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A process of {@code thermocline gateway} in the cluster, and the program's commands that go through it. */
public final class Gateway implements AutoCloseable {
    private static final Duration READY = Duration.ofSeconds(60);
    private static final Duration COMMAND = Duration.ofSeconds(60);
    private static final String ENDPOINT = "endpoint=";

    private final Path dir;
    private final Process process;
    private final String endpoint;

    Gateway(Path dir, String metadata) throws Exception {
        this.dir = Files.createDirectories(dir);
        Path log = dir.resolve("log");
        process = builder(List.of("gateway", "--metadata", metadata, "--cold", dir.resolve("cold").toUri().toString(),
            "--listen", "127.0.0.1:0", "--admin", "off")).redirectErrorStream(true).redirectOutput(log.toFile()).start();
        try {
            Waiting.until("the gateway says that it serves; its log is " + log, READY,
                () -> !process.isAlive() || endpoint(log) != null);
            endpoint = endpoint(log);
            if (endpoint == null) {
                throw new IOException("the gateway ended: " + Files.readString(log));
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

    /** Runs {@code thermocline words…} with {@code input} on its standard input, against this gateway. */
    public Result run(byte[] input, String... words) throws Exception {
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

    @Override
    public void close() throws Exception {
        process.destroyForcibly().waitFor();
    }
}
