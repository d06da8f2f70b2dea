int cuInit(unsigned flags);

int cuInit(unsigned flags)
{
    (void)flags;
    return 4711;
}
