package thermocline.interop.cluster;

import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/** One cluster for all tests, since starting one takes longer than most of them; whatever a test kills is back for the next. */
public final class SharedCluster implements ParameterResolver, AfterEachCallback {
    /** An ensemble of three, one to replace a member with, and one more that may be down meanwhile. */
    private static final int BOOKIES = 5;

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == Cluster.class;
    }

    @Override
    public Cluster resolveParameter(ParameterContext parameter, ExtensionContext context) {
        return cluster(context);
    }

    @Override
    public void afterEach(ExtensionContext context) throws Exception {
        cluster(context).heal();
    }

    private static Cluster cluster(ExtensionContext context) {
        Resource resource = context.getRoot().getStore(ExtensionContext.Namespace.GLOBAL)
            .getOrComputeIfAbsent(Resource.class, key -> new Resource(), Resource.class);
        return resource.cluster();
    }

    /** Starts the cluster once; when that failed, every test says why. */
    private static final class Resource implements ExtensionContext.Store.CloseableResource {
        private Cluster cluster;
        private Throwable failure;

        Resource() {
            try {
                cluster = new Cluster(BOOKIES);
            } catch (Exception | AssertionError e) {
                failure = e;
            }
        }

        Cluster cluster() {
            if (failure != null) {
                throw new AssertionError("the cluster did not start: " + failure.getMessage(), failure);
            }
            return cluster;
        }

        @Override
        public void close() throws Throwable {
            if (cluster != null) {
                cluster.close();
            }
        }
    }
}
