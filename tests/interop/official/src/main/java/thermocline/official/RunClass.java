package thermocline.official;

import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.platform.engine.FilterResult;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.TestSource;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.LauncherDiscoveryRequest;
import org.junit.platform.launcher.PostDiscoveryFilter;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

/**
 * Runs one test class and notes what comes of each method, one line each, as soon as it is known: so that what was run is known too
 * when this JVM is killed because its time is over.
 *
 * <p>Arguments: the file of the results, the class, the methods that are left out.
 * A line is {@code method, what came of it, milliseconds, bookies of ours, bookies the test brought itself, why}, separated by tabs.
 */
public final class RunClass {
    /** How long a method may take that has no limit of its own. */
    private static final String METHOD_LIMIT = "150 s";

    private RunClass() {}

    /** The entry point. */
    public static void main(String[] arguments) throws Exception {
        Path results = Path.of(arguments[0]);
        List<String> leftOut = Arrays.asList(arguments).subList(2, arguments.length);
        LauncherDiscoveryRequest request = LauncherDiscoveryRequestBuilder.request()
            .selectors(selectClass(arguments[1]))
            .filters((PostDiscoveryFilter) test -> FilterResult.includedIf(!leftOut.contains(name(test.getSource(), ""))))
            .configurationParameter("junit.jupiter.execution.timeout.default", METHOD_LIMIT)
            .build();
        try (PrintStream out = new PrintStream(Files.newOutputStream(results, StandardOpenOption.CREATE_NEW), true)) {
            Notes notes = new Notes(out);
            LauncherFactory.create().execute(request, notes);
            if (!notes.any) {
                throw new IllegalArgumentException(arguments[1] + " has no test to run");
            }
        }
        // Tests leave threads behind, and no one waits for them.
        System.exit(0);
    }

    /** The method's name, whatever parameters it is run with; {@code other} for what is no method. */
    private static String name(Optional<TestSource> source, String other) {
        return source.filter(MethodSource.class::isInstance).map(method -> ((MethodSource) method).getMethodName()).orElse(other);
    }

    private static final class Notes implements TestExecutionListener {
        private final PrintStream out;
        private final Map<String, Start> running = new ConcurrentHashMap<>();
        private volatile boolean any;

        Notes(PrintStream out) {
            this.out = out;
        }

        private record Start(long nanos, int ours, int own) {
            static Start now() {
                return new Start(System.nanoTime(), count("ours"), count("own"));
            }

            private static int count(String whose) {
                return Integer.getInteger("thermocline.bookies." + whose, 0);
            }
        }

        @Override
        public void executionStarted(TestIdentifier test) {
            running.put(test.getUniqueId(), Start.now());
        }

        @Override
        public void executionSkipped(TestIdentifier test, String reason) {
            note(test, "skipped", Start.now(), reason);
        }

        @Override
        public void executionFinished(TestIdentifier test, TestExecutionResult result) {
            Start start = running.getOrDefault(test.getUniqueId(), Start.now());
            Throwable cause = result.getThrowable().orElse(null);
            // A class that cannot even be set up has no methods to tell of it.
            if (test.isTest() || cause != null) {
                String came = switch (result.getStatus()) {
                    case SUCCESSFUL -> "passed";
                    case ABORTED -> "skipped";
                    case FAILED -> "failed";
                };
                note(test, came, start, cause == null ? "" : cause.toString());
                if (cause != null) {
                    cause.printStackTrace();
                }
            }
        }

        private void note(TestIdentifier test, String came, Start start, String why) {
            any = true;
            Start now = Start.now();
            String line = why.strip().lines().findFirst().orElse("").replace('\t', ' ');
            out.println(String.join("\t", name(test.getSource(), "(the class)"), came,
                Long.toString((now.nanos() - start.nanos()) / 1_000_000),
                Integer.toString(now.ours() - start.ours()), Integer.toString(now.own() - start.own()), line));
        }
    }
}
